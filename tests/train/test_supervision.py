"""Rows without anything to learn are found before step 1 (C32), and people can look at the mask."""

from contextlib import closing
from itertools import islice

import numpy as np
import pytest

from jetspec_jax.testing import ByteTokenizer
from train.loader import Loader
from train.mask_report import mask_report
from train.supervision import check_supervision, supervised
from train.testing import ToySource


@pytest.mark.parametrize(
    ("mask", "length", "expected"),
    [
        pytest.param([0, 0, 0, 0], 4, [0, 0, 0, 0], id="none"),
        pytest.param([1, 1, 1, 1], 4, [0, 1, 1, 1], id="the-first-token-follows-nothing"),
        pytest.param([0, 0, 1, 1], 3, [0, 0, 1, 0], id="padding"),
        pytest.param([1, 0, 0, 0], 1, [0, 0, 0, 0], id="length-1"),
    ],
)
def test_supervised_tokens(mask, length, expected):
    np.testing.assert_array_equal(supervised(np.array(mask, bool), length), np.array(expected, bool))


def batches_of(source: ToySource):
    with closing(Loader(source, 10, 0)) as loader:
        yield from islice(loader, 4)


def test_a_tenth_of_bare_rows_is_allowed_and_more_is_an_error_with_an_example():
    check_supervision(batches_of(ToySource(40, num_bare=4)))
    with pytest.raises(ValueError, match=r"5 of the first 40 rows .*record [0-4]: 8 tokens, 0 marked .*starts with \["):
        check_supervision(batches_of(ToySource(40, num_bare=5)))


def test_report_marks_the_supervised_part_and_counts():
    tokenizer = ByteTokenizer()
    tokens = np.array(tokenizer.encode("Hi? Yes!####"), np.int32)
    mask = np.zeros(12, bool)
    mask[4:8] = True
    rows = [
        {"tokens": tokens, "answer_mask": mask & False, "length": 8, "id": 70},
        {"tokens": tokens, "answer_mask": mask, "length": 8, "id": 71},
    ]
    report = mask_report(rows, tokenizer)
    assert "record 71" in report
    assert "Hi? [[Yes!]]" in report
    assert "#" not in report
    assert "first 2 rows: 16 tokens, 4 supervised (25.0%), 1 rows without any" in report
