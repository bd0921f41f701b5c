"""PTX text, as Triton writes it -> a Program: instructions, labels and the widths of registers.

Only what stands in the body of one kernel is read; directives are skipped. An instruction keeps
the line of the Python source that the compiler noted for it, so that a finding can name it.
"""

import re
from dataclasses import dataclass

_STATEMENT = re.compile(
    r"(?:@(?P<not>!?)(?P<guard>%\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<rest>.*)"
)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_ADDRESS = re.compile(r"\[\s*([%$\w.]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(%\w+?)<\d+>")


class PtxError(Exception):
    """What a GPU would do wrong, or what this machine does not know."""


@dataclass(frozen=True)
class Address:
    base: str
    offset: int


Operand = str | Address | tuple[str, ...]


@dataclass(frozen=True)
class Instruction:
    opcode: tuple[str, ...]  # ("ld", "global", "v4", "b32")
    operands: tuple[Operand, ...]
    guard: str | None  # the predicate without which nothing happens
    negated: bool
    text: str
    where: str  # "weighted_sum.py:17:25"


@dataclass(frozen=True, eq=False)
class Program:
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]  # -> the instruction that comes next
    widths: dict[str, int]  # bits of a register by its prefix; 1 for a predicate
    parameters: tuple[int, ...]  # bits of each

    def width(self, register: str) -> int:
        return self.widths[register.rstrip("0123456789")]


def parse(ptx: str) -> Program:
    head, _, rest = ptx.partition("\n{")
    body = rest.partition("\n}")[0]
    parameters = tuple(int(bits) for bits in re.findall(r"\.param\s+\.[a-z](\d+)", head))
    widths = {p: 1 if kind == "pred" else int(kind[1:]) for kind, p in _REGISTERS.findall(body)}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    where = ""
    for line in body.splitlines():
        code, _, comment = line.partition("//")
        code = code.strip()
        if code.startswith(".loc"):
            where = comment.strip().split(" ")[0]
        elif code.endswith(":"):
            labels[code[:-1]] = len(instructions)
        elif code and not code.startswith("."):
            if not code.endswith(";"):
                raise PtxError(f"not one statement a line: {code}")
            instructions.append(_instruction(code[:-1].strip(), where))
    return Program(tuple(instructions), labels, widths, parameters)


def _instruction(code: str, where: str) -> Instruction:
    found = _STATEMENT.fullmatch(code)
    if found is None:
        raise PtxError(f"not a statement: {code}")
    operands = tuple(_operand(text) for text in _OPERAND.findall(found["rest"]))
    opcode = tuple(found["opcode"].replace("::", ".").split("."))
    return Instruction(opcode, operands, found["guard"], found["not"] == "!", code, where)


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return tuple(part.strip() for part in text.strip("{} ").split(","))
    if text.startswith("["):
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise PtxError(f"not an address: {text}")
        return Address(found[1], int(found[2] or "0", 0))
    return text
