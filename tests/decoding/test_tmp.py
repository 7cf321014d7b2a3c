import numpy as np
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.testing import TableTarget, tiny_target, random_drafter
P=np.log(np.array([[.5,.3,.2],[.1,.6,.3],[.25,.25,.5]]))
def test_a():
    m=LanguageModel(TableTarget(P),drafter=None)
    print(m.generate([0],max_new_tokens=10,temperature=1.0,seed=1))
def test_b():
    m=LanguageModel(TableTarget(P),drafter=random_drafter(3,4),num_drafts=4)
    print(m.generate([0],max_new_tokens=10,temperature=1.0,seed=1))
