"""Experiment: the client index with and without the diversity loss, on data with domains.

    python bench/index_collapse.py --out DIR [--data shapes | --data FILE.npz] [--epochs E]

Every domain is dealt to ten clients. Without L_div the feature indices of all clients point the
same way (the paper's observation). DIR gets results.json and the pictures of both indices. A file
must hold x uint8 [N, H, W, 3], label [N], domain [N], class_names and domain_names (as PACS in
that form); a tenth of it is set aside as test set.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

from c2v_sim import Dataset, Federation, build_index, load_dataset, make_partition
from c2v_sim.data.dataset import content_hash
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import embed_dataset
from c2v_sim.index.plots import plot_all
from c2v_sim.system.machine import keep_freed_memory


def dataset_from(file: Path) -> Dataset:
    with np.load(file) as arrays:
        x, y, domain = (arrays[name] for name in ("x", "label", "domain"))
        classes, domains = (tuple(map(str, arrays[f"{n}_names"])) for n in ("class", "domain"))
    order = np.random.default_rng(0).permutation(len(x))
    parts = {"train": np.sort(order[len(x) // 10 :]), "test": np.sort(order[: len(x) // 10])}
    tensors = {}
    for part, ids in parts.items():
        tensors[f"x_{part}"] = torch.from_numpy(x[ids])
        tensors[f"y_{part}"] = torch.from_numpy(y[ids].astype(np.int64))
        tensors[f"domain_{part}"] = torch.from_numpy(domain[ids].astype(np.int64))
    return Dataset(
        name=file.stem,
        **tensors,
        class_names=classes,
        domain_names=domains,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        source=str(file.name),
        sha256=content_hash(tensors),
    )


def federation_by_domain(data: str, clients_per_domain: int) -> Federation:
    dataset = load_dataset("shapes") if data == "shapes" else dataset_from(Path(data))
    if dataset.domain_train is None or dataset.domain_test is None:
        raise SystemExit(f"{dataset.name} has no domains")
    partition = make_partition(
        "by-domain",
        dataset.y_train.numpy(),
        dataset.y_test.numpy(),
        domain_train=dataset.domain_train.numpy(),
        domain_test=dataset.domain_test.numpy(),
        clients_per_domain=clients_per_domain,
    )
    return Federation(dataset, partition)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", default="shapes", help="shapes, or an npz file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--encoder", default="builtin")
    parser.add_argument("--strategy", default="global")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-samples", type=int, default=200)
    arguments = parser.parse_args()
    keep_freed_memory()
    federation = federation_by_domain(arguments.data, clients_per_domain=10)
    embeddings = embed_dataset(federation.dataset, arguments.encoder)
    results = {}
    for name, omitted in (("all losses", ()), ("without diversity", ("div",))):
        config = IndexConfig(
            encoder=arguments.encoder,
            strategy=arguments.strategy,
            epochs=arguments.epochs,
            omit_loss=omitted,
            threads=arguments.threads,
            max_samples=arguments.max_samples,
        )
        index = build_index(federation, config, embeddings=embeddings)
        folder = arguments.out / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        plot_all(index, folder)
        results[name] = index.quality | {"losses": index.provenance["curve"][-1]}
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    about = {"data": federation.dataset.name, "encoder": embeddings.encoder}
    about |= {"clients": federation.partition.clients, "epochs": arguments.epochs}
    text = json.dumps(about | {"results": results}, indent=1)
    (arguments.out / "results.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
