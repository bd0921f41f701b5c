"""Known vulnerabilities of everything that is installed: `python audit.py`, by `make audit`.

pip-audit also ends with 0 where its database knew none of the packages, as behind a mirror that has
the files alone. Here a package that could not be looked up is a failure too, but for those that no
database has: this project itself, and builds of one's own (torch 2.13.0+cpu), which are named.
"""

import json
import subprocess
import sys

COMMAND = ["-m", "pip_audit", "--local", "--format", "json", "--progress-spinner", "off"]


def verdict(packages: list[dict]) -> tuple[int, list[str]]:
    """The exit code and what to say, from pip-audit's list."""
    skipped = {p["name"]: p["skip_reason"] for p in packages if "skip_reason" in p}
    own = {name for name, why in skipped.items() if "+" in why or name == "c2v-sim"}
    bad = [
        f"{p['name']} {p['version']}: {', '.join(v['id'] for v in p['vulns'])}"
        for p in packages
        if p.get("vulns")
    ]
    unknown = sorted(skipped.keys() - own)
    said = [f"{len(packages) - len(skipped)} packages looked up, {len(bad)} vulnerable", *bad]
    said += [f"in no database: {', '.join(sorted(own))}"] if own else []
    said += [f"NOT looked up: {', '.join(unknown)} ({skipped[unknown[0]]})"] if unknown else []
    return int(bool(bad or unknown)), said


def main() -> int:
    done = subprocess.run([sys.executable, *COMMAND], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(done.stderr or done.stdout, file=sys.stderr)
        print("make audit: the database could not be reached (see above)", file=sys.stderr)
        return 1
    code, said = verdict(packages)
    print(*said, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
