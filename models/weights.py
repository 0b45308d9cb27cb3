"""Read weights without ever running code from the file, and say exactly what does not fit."""

import warnings
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from hwbmpq.errors import WeightsError, cut, printable
from hwbmpq.io import open_regular
from hwbmpq.models.archives import check_archive

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and torch.compile
_MOST_LISTED = 8
_LONGEST_KEY = 200
_MOST_BYTES = 1 << 36
_HOW_TO_SAVE = "save only the tensors: torch.save(model.state_dict(), 'weights.pt'), or use safetensors"


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Change ``model`` in place: load a safetensors file or a torch checkpoint of tensors.

    A ``state_dict`` key around the tensors and the prefixes of DataParallel (``module.``) and torch.compile
    (``_orig_mod.``) are taken off.
    Every tensor of the model must be there with its shape, and nothing else.
    """
    path = Path(path)
    state = _strip_prefix(_unwrap(_read(path), path))
    _check_fit(model, state, path)
    model.load_state_dict(state)
    return model


def _read(path: Path) -> object:
    if not path.exists():
        raise WeightsError(f"no weights file {path}", hint="check the path; it is relative to this folder")
    try:
        with open_regular(path, _MOST_BYTES) as file:
            if path.suffix == ".safetensors":
                return load(file.read())  # not by its path, where another file may be by now
            check_archive(file)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about formats that are refused a moment later
                return torch.load(file, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise WeightsError(
            f"{path} is damaged or not a safetensors file: {error}", hint=_HOW_TO_SAVE
        ) from error
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise WeightsError(
            f"{path} is damaged or not a torch checkpoint: {error}", hint=_HOW_TO_SAVE
        ) from error
    except UnpicklingError as error:
        raise WeightsError(
            f"{path} holds more than tensors, or is not a torch checkpoint; it was not unpickled, since that could "
            "run code from the file",
            hint=_HOW_TO_SAVE,
        ) from error
    except Exception as error:  # torch.load raises zip, EOF, key and runtime errors on damaged files
        raise WeightsError(
            f"{path} is damaged or not a torch checkpoint ({type(error).__name__})", hint=_HOW_TO_SAVE
        ) from error


def _unwrap(content: object, path: Path) -> dict[str, Tensor]:
    for key in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        what = "an empty one" if content == {} else f"a {type(content).__name__}"
        raise WeightsError(f"{path} holds no state_dict but {what}", hint=_HOW_TO_SAVE)
    strange = [key for key, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise WeightsError(
            f"{path} holds no plain state_dict: {_told(strange[0])} is a {type(content[strange[0]]).__name__}",
            hint=f"tensors may stand at the top or under one of: {', '.join(_WRAPPERS)}",
        )
    return content


def _told(key: object) -> str:
    return cut(printable(repr(key)), _LONGEST_KEY)


def _strip_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state):
            return _strip_prefix({key.removeprefix(prefix): value for key, value in state.items()})
    return state


def _check_fit(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    wanted = model.state_dict()
    # Old checkpoints lack this counter, which no inference uses.
    missing = [k for k in wanted if k not in state and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in state if k not in wanted]
    mismatched = [k for k in wanted if k in state and wanted[k].shape != state[k].shape]
    problems = [
        *(f"missing {k} {tuple(wanted[k].shape)}" for k in missing),
        *(f"unexpected {cut(printable(str(k)), _LONGEST_KEY)} {tuple(state[k].shape)}" for k in unexpected),
        *(f"{k} is {tuple(state[k].shape)}, the model has {tuple(wanted[k].shape)}" for k in mismatched),
    ]
    if problems:
        more = len(problems) - _MOST_LISTED
        listed = "\n  ".join(problems[:_MOST_LISTED]) + (f"\n  and {more} more" if more > 0 else "")
        raise WeightsError(
            f"{path} does not fit the model ({len(missing)} missing, {len(unexpected)} unexpected, "
            f"{len(mismatched)} of another shape):\n  {listed}",
            hint="check the model's name, and --num-classes if only the last layer differs",
        )
    for key in wanted:
        if key.endswith("num_batches_tracked"):
            state.setdefault(key, wanted[key])
