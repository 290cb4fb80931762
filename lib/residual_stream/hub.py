"""Models by Hugging Face name: brought into the hub's cache, with errors one can act on."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from .fetch import FetchError, NoNetworkError


class UnknownModelError(NoNetworkError, ValueError):
    """A name that isn't known here, while the hub can't be asked whether it knows it."""


_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def bring(name: str, *, revision: str | None = None, known: str) -> None:
    """Make sure that a model's configuration and weights are in the hub's cache.

    Only safetensors are brought and accepted: a `pytorch_model.bin` is a pickle.

    Args:
        name: Name on the hub, such as `gpt2` or `EleutherAI/pythia-70m`.
        revision: Branch, tag or commit.
        known: Sentence that lists the names which need no network, for the errors.

    Raises:
        ValueError: If the hub knows no such model or revision, or has no safetensors of it.
        UnknownModelError: If the hub can't be reached, or `HF_HUB_OFFLINE` forbids it, and the
            files are not in its cache.
        FetchError: If the model's authors must first grant access to it.
    """
    from huggingface_hub import HfApi, errors, hf_hub_download, try_to_load_from_cache

    given = name if revision is None else f"{name}@{revision}"
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
            # Asked once: hf_hub_download would try a hub that isn't there for half a minute.
            HfApi().model_info(name, revision=revision, timeout=10)
        hf_hub_download(name, "config.json", revision=revision)
        for file in _weight_files(name, revision):
            hf_hub_download(name, file, revision=revision)
    except errors.GatedRepoError as error:
        raise FetchError(
            f"load: {given} needs its authors' consent: accept the licence on its hub page, then "
            "run `hf auth login` or set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ValueError(
            f"load: no model {name!r}, here or on the Hugging Face hub. {known}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(
            f"load: {name} has no revision {revision!r} on the Hugging Face hub"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        *_transport_errors(),
    ) as error:
        wanted = f"{name}" if revision is None else f"{name} --revision {revision}"
        raise UnknownModelError(
            f"load: {given!r} is not a model that ships here, and its files are not in this "
            "machine's Hugging Face cache. Hugging Face names need a network once: run "
            f"`hf download {wanted}` where there is one (copy its cache here, or set HF_HOME "
            f"to it), and unset HF_HUB_OFFLINE if it is set. {known}"
        ) from error
    except errors.EntryNotFoundError as error:
        raise ValueError(
            f"load: {given} has no config.json on the Hugging Face hub; pass a transformers model"
        ) from error


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises without a network; which client it is depends on its version."""
    clients = [name for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]
    return tuple(importlib.import_module(name).TransportError for name in clients)


def _weight_files(name: str, revision: str | None) -> list[str]:
    """Names of the weight files, all of them safetensors."""
    from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

    try:
        index = hf_hub_download(name, _INDEX, revision=revision)
    except errors.LocalEntryNotFoundError:
        # offline, the cache can't tell "no such file" from "not fetched": look for the single file
        if isinstance(try_to_load_from_cache(name, _WEIGHTS, revision=revision), str):
            return [_WEIGHTS]
        raise
    except errors.EntryNotFoundError:
        try:
            hf_hub_download(name, _WEIGHTS, revision=revision)
        except errors.LocalEntryNotFoundError:
            raise
        except errors.EntryNotFoundError as error:
            raise ValueError(no_safetensors(name)) from error
        return [_WEIGHTS]
    return sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))


def require_folder(folder: Path) -> None:
    """Check that a local folder holds a model in Hugging Face's layout, with safetensors.

    Raises:
        ValueError: If it has no `config.json`, or no `*.safetensors`.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"load: the folder {folder} has no config.json; pass one that save_pretrained wrote"
        )
    if not any((folder / name).is_file() for name in (_WEIGHTS, _INDEX)):
        raise ValueError(no_safetensors(str(folder)))


def no_safetensors(name: str) -> str:
    """The error for a model that has no safetensors."""
    return (
        f"load: {name} has no model.safetensors, and other weight files (pickles) are not read; "
        "convert it where you trust it: "
        "`AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)`, and pass FOLDER"
    )
