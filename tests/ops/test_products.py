import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.ops.products import product


@pytest.mark.parametrize(
    ("subscripts", "a", "b"),
    [
        ("bkqh,bksh->bkqs", (2, 1, 3, 4), (2, 1, 5, 4)),
        ("bkrqu,brkuh->bkrqh", (2, 1, 3, 4, 5), (2, 3, 1, 5, 6)),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_value_and_gradients_are_those_of_einsum(subscripts, a, b, dtype):
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=shape), dtype) for shape in (a, b))

    def of(function):
        out, pull = jax.vjp(function, a, b)
        return out, *pull(jnp.asarray(rng_out, out.dtype))

    rng_out = rng.normal(size=jnp.einsum(subscripts, a, b).shape)
    ours = of(lambda a, b: product(subscripts, a, b))
    plain = of(lambda a, b: jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32))
    assert [x.dtype for x in ours] == [jnp.float32, dtype, dtype]
    for one, other in zip(ours, plain, strict=True):
        # The cotangent has the operands' precision: 8 bits in bf16.
        tolerance = 1e-5 if dtype == jnp.float32 else 0.05
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), atol=tolerance, rtol=tolerance)
