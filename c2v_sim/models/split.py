"""Any module that ends in a classifier, as the two parts that are asked of a model.

    logits = forward(x)  →  z = features(x) [B, d],  logits = classifier(z) [B, K]

The classifier is the part whose output is the logits, the innermost of them; where none is (the
logits are one position of a sequence, say), the last Linear that ran. It is found by running one
batch, or named, and then proven: with an identity in its place the module gives z, and
classifier(z) must be what the whole module gave. The proof is made with random weights in the
classifier, because many start as zeros, where anything would agree.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from c2v_sim.models.common import check_model


class NoSplit(ValueError):
    """A module in which no classifier is found; the message says what to do."""


class Split(nn.Module):
    """`whole` with an identity where its `classifier` was, which was called `place`.

    contiguous: its code, such as x.view(len(x), -1), takes no channels_last tensors.
    """

    contiguous = False

    def __init__(self, whole: nn.Module, classifier: nn.Module, place: str) -> None:
        super().__init__()
        self.whole, self.classifier, self.place = whole, classifier, place

    def features(self, x: Tensor) -> Tensor:  # [B, …] -> [B, d]
        return logits_in(self.whole(x.contiguous() if self.contiguous else x))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def split(module: nn.Module, x: Tensor, classifier: str | None = None) -> nn.Module:
    """`module` itself where it has features and classifier, else the Split that it is turned into.

    x: a batch [B, …]. classifier: the name of the part, such as "fc"; None: it is found. The
    module is changed: give a copy.
    """
    if not isinstance(module, nn.Module) or not has_forward(module):
        check_model(module)
    training = module.training
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if classifier is None and is_split(module, x):
                return module
            return found(module, x, classifier)
    finally:
        module.train(training)


def is_split(module: nn.Module, x: Tensor) -> bool:
    """Whether classifier(features(x)) is what the module itself offers.

    Other modules have parts of these names as well, such as the convolutions of torchvision's
    networks, which alone do not give z [B, d].
    """
    if not callable(getattr(module, "features", None)):
        return False
    if not isinstance(getattr(module, "classifier", None), nn.Module):
        return False
    if not has_forward(module):
        return True
    try:
        z = module.features(x)  # type: ignore[operator]
        module.classifier(z)  # type: ignore[operator]
    except Exception:
        return False
    return isinstance(z, Tensor) and z.dim() == 2


def has_forward(module: nn.Module) -> bool:
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def found(module: nn.Module, x: Tensor, classifier: str | None) -> Split:
    """The Split of `module`, or NoSplit."""
    name, linear = type(module).__name__, linear_parts(module)
    if classifier is not None and classifier not in dict(module.named_modules()):
        raise NoSplit(
            f"model {name} has no part {classifier!r}; its Linear parts are {linear or 'none'}"
        )
    contiguous = needs_contiguous(module, x)
    x = x.contiguous() if contiguous else x
    tried = [classifier] if classifier is not None else candidates(module, x)
    for place in tried:
        if (cut := cut_at(module, place, x)) is not None:
            cut.contiguous = contiguous
            return cut
    raise NoSplit(
        f"model {name}: no part was found that makes its logits of features [B, d] (tried: "
        f"{', '.join(map(repr, tried)) or 'nothing'}). Name it with classifier=… (Linear parts: "
        f"{linear or 'none'}), or give the model a method features(x) -> z [B, d] and a module "
        "classifier: z -> logits"
    )


def needs_contiguous(module: nn.Module, x: Tensor) -> bool:
    """Whether `module` takes x only as a contiguous tensor; it raises where it takes neither."""
    if not x.is_contiguous():
        try:
            module(x)
        except RuntimeError:
            module(x.contiguous())
            return True
    return False


def linear_parts(module: nn.Module) -> str:
    """The names of the last few Linear parts."""
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return ", ".join(names[-8:])


def candidates(module: nn.Module, x: Tensor) -> list[str]:
    """Parts whose output is the logits, the innermost first; then the last Linear that ran."""
    if isinstance(module, nn.Linear):
        return [""]
    names = {part: name for name, part in module.named_modules() if name}
    ran: list[tuple[nn.Module, Any]] = []  # with what they gave: so no address comes twice
    hooks = [p.register_forward_hook(lambda p, _, out: ran.append((p, out))) for p in names]
    try:
        logits = logits_in(module(x))
    finally:
        for hook in hooks:
            hook.remove()
    trained = {p for p in names if next(p.parameters(), None) is not None}
    ends = [part for part, out in ran if part in trained and same_numbers(out, logits)]
    linear = [part for part, _ in ran if isinstance(part, nn.Linear)]
    return list(dict.fromkeys(names[part] for part in ends + linear[-1:]))


def same_numbers(out: object, logits: Tensor) -> bool:
    """Whether both lie at the same place in memory."""
    if not isinstance(out, Tensor) or out.numel() != logits.numel():
        return False
    return out.data_ptr() == logits.data_ptr()


def cut_at(module: nn.Module, place: str, x: Tensor) -> Split | None:
    """The Split at `place` where that is proven; None, and the module as it was, where not."""
    classifier = module.get_submodule(place)
    if classifier is module:
        return Split(nn.Identity(), module, place)
    passing = nn.Identity()
    with random_weights(classifier):
        expected = logits_in(module(x))
        replace(module, classifier, passing)
        try:
            z = logits_in(module(x))
            if z.dim() == 2 and close(classifier(z), expected):
                return Split(module, classifier, place)
        except Exception:  # whatever a module may raise on features where it expects logits
            pass
    replace(module, passing, classifier)
    return None


@contextmanager
def random_weights(module: nn.Module) -> Iterator[None]:
    """Noise in its floating parameters inside, what was there outside."""
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    before = [p.clone() for p in parameters]
    generator = torch.Generator().manual_seed(0)
    for p in parameters:
        p.copy_(torch.randn(p.shape, generator=generator))
    try:
        yield
    finally:
        for p, values in zip(parameters, before, strict=True):
            p.copy_(values)


def replace(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """`new` wherever `old` is inside of `module`."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def close(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding, which one product of a whole sequence does otherwise."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))


def logits_in(output: Any) -> Tensor:
    """The logits in what a module returned: a tensor, `.logits`, ["logits"], or the first."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise NoSplit(
            "a model must return logits: a tensor [B, K], an object with .logits, or a tuple that "
            f"begins with them; got {type(output).__name__}"
        )
    return output


def state_dict_of(model: nn.Module, trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a user's own module: `trained`, and what is not trained.

    model: what was made of it, with Split anywhere inside; trained: some of its tensors, by name.
    Names are those of the user's module; two names of one tensor both appear.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    first = {id(tensor): name for name, tensor in tensors.items()}
    state = dict(trained)  # in its order, then the rest
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and name not in state:
            source = first.get(id(tensor), name)
            state[name] = trained.get(source, tensor).detach().cpu().clone()
    prefixes = own_prefixes(model)
    return {own_name(name, prefixes): tensor for name, tensor in state.items()}


def own_prefixes(model: nn.Module) -> dict[str, str]:
    """Beginnings of names inside of a Split -> what they are in the user's module."""
    prefixes = {}
    for name, part in model.named_modules():
        if isinstance(part, Split):
            inside = f"{name}." if name else ""
            prefixes[f"{inside}whole."] = inside
            prefixes[f"{inside}classifier."] = inside + (f"{part.place}." if part.place else "")
    return prefixes


def own_name(name: str, prefixes: dict[str, str]) -> str:
    for prefix, own in prefixes.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name
