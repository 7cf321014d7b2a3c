import pytest

from jetspec_jax.testing.byte_tokenizer import ByteTokenizer
from jetspec_jax.text import encode_prompt, is_batch, validate_messages
from jetspec_jax.text.chat_template import render_template

HELLO = [{"role": "user", "content": "Hi"}]
BOS = 256


def render(source: str, messages=HELLO, *, add_generation_prompt=True, **template_kwargs) -> str:
    return render_template(
        source,
        messages,
        add_generation_prompt=add_generation_prompt,
        special_tokens={"bos_token": "<s>"},
        template_kwargs=template_kwargs,
    )


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        pytest.param("text", False, id="text"),
        pytest.param("", False, id="empty-text"),
        pytest.param([1, 2], False, id="ids"),
        pytest.param((1, 2), False, id="tuple-of-ids"),
        pytest.param(HELLO, False, id="chat"),
        pytest.param(["a", "b"], True, id="texts"),
        pytest.param([""], True, id="C37-one-empty-text"),
        pytest.param([[1, 2], [3]], True, id="lists-of-ids"),
        pytest.param([[]], True, id="C37-one-empty-list"),
        pytest.param([HELLO, HELLO], True, id="chats"),
        pytest.param([HELLO, "a", [1]], True, id="mixed"),
    ],
)
def test_one_prompt_or_a_batch(prompts, expected):
    assert is_batch(prompts) is expected


def test_empty_list_is_an_empty_prompt_error():
    with pytest.raises(ValueError, match="empty prompt"):
        is_batch([])


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        pytest.param("né", [110, 195, 169], id="text"),
        pytest.param([0, 257], [0, 257], id="ids"),
        pytest.param((7,), [7], id="tuple"),
        pytest.param(HELLO, list(b"user: Hi\nassistant: "), id="chat"),
    ],
)
def test_encodes_each_kind_of_prompt(prompt, ids):
    assert encode_prompt(ByteTokenizer(), prompt) == ids


def test_text_gets_bos_and_ids_stay_as_they_are():
    tokenizer = ByteTokenizer(add_bos=True)
    assert encode_prompt(tokenizer, "a") == [BOS, 97]
    assert encode_prompt(tokenizer, [97]) == [97]


@pytest.mark.parametrize("prompt", [pytest.param("", id="C37-text"), pytest.param([], id="C37-ids")])
def test_empty_prompt_is_bos_or_an_error(prompt):
    assert encode_prompt(ByteTokenizer(add_bos=True), prompt) == [BOS]
    with pytest.raises(ValueError, match="prompt 3 is empty"):
        encode_prompt(ByteTokenizer(), prompt, name="prompt 3")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        pytest.param([1, True], r"prompt\[1\] must be a token id, got True \(bool\)", id="bool"),
        pytest.param([1.0], r"prompt\[0\] must be a token id, got 1.0 \(float\)", id="float"),
        pytest.param([1, "a"], r"prompt\[1\] must be a token id, got 'a' \(str\)", id="text-among-ids"),
        pytest.param([-1], r"prompt\[0\] is token id -1, outside 0..257", id="negative"),
        pytest.param([258], r"prompt\[0\] is token id 258, outside 0..257", id="C28-above-vocabulary"),
        pytest.param(b"ab", "prompt must be text, a list of token ids or a list of messages, got bytes", id="bytes"),
        pytest.param(HELLO[0], "got dict", id="message-without-list"),
        pytest.param(None, "got NoneType", id="none"),
        pytest.param("a\udc00", r"prompt has a lone surrogate U\+DC00 at character 1", id="surrogate"),
    ],
)
def test_bad_prompt_is_named(prompt, message):
    with pytest.raises(ValueError, match=message):
        encode_prompt(ByteTokenizer(), prompt)


def test_ids_are_checked_against_the_given_vocabulary():
    assert encode_prompt(ByteTokenizer(), [300], vocab_size=512) == [300]
    with pytest.raises(ValueError, match=r"token id 40, outside 0..31"):
        encode_prompt(ByteTokenizer(), [40], vocab_size=32)


def test_template_arguments_need_a_chat_and_a_template_that_uses_them():
    arguments = {"enable_thinking": True}
    with pytest.raises(ValueError, match=r"\['enable_thinking'\] given, but the prompt is not a chat"):
        encode_prompt(ByteTokenizer(), "a", chat_template_kwargs=arguments)
    with pytest.raises(ValueError, match="does not use enable_thinking"):
        encode_prompt(ByteTokenizer(), HELLO, chat_template_kwargs=arguments)
    with pytest.raises(ValueError, match="'messages' is not a chat template argument"):
        encode_prompt(ByteTokenizer(), HELLO, chat_template_kwargs={"messages": HELLO})
    ids = encode_prompt(ByteTokenizer(), HELLO, chat_template_kwargs={"add_generation_prompt": False})
    assert ids == list(b"user: Hi\n")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        pytest.param([], "messages is empty", id="C37-empty"),
        pytest.param("Hi", "must be a list of messages, got str", id="text"),
        pytest.param([*HELLO, "Hi"], r"messages\[1\] must be a mapping", id="text-among-messages"),
        pytest.param([{"role": "bot", "content": ""}], r"messages\[0\] has role 'bot', expected one of", id="role"),
        pytest.param([{"content": "Hi"}], r"messages\[0\] has role None", id="no-role"),
        pytest.param([*HELLO, {"role": "user"}], r"messages\[1\] \(role 'user'\) has no content", id="no-content"),
        pytest.param([{"role": "assistant", "content": None}], "has no content", id="content-none"),
        pytest.param([{"role": "user", "content": [1]}], "content must be text, got list", id="content-list"),
        pytest.param([{"role": "user", "content": "\ud800"}], r"messages\[0\] content has a lone", id="surrogate"),
    ],
)
def test_bad_messages_are_named(messages, message):
    with pytest.raises(ValueError, match=message):
        validate_messages(messages)


def test_good_messages_pass_unchanged():
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": "1+1?", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]},
        {"role": "tool", "content": "2"},
    ]
    assert validate_messages(tuple(messages)) == messages


@pytest.mark.parametrize(
    ("source", "arguments", "text"),
    [
        pytest.param("{{ bos_token }}{{ messages[0].content }}", {}, "<s>Hi", id="special-token"),
        pytest.param("{% if true %}\n  {% if true %}\nx{% endif %}\n{% endif %}", {}, "x", id="blocks-trimmed"),
        pytest.param("{{ messages | tojson }}", {}, '[{"role": "user", "content": "Hi"}]', id="tojson"),
        pytest.param("{{ '<é>' | tojson }}", {}, '"<é>"', id="tojson-does-not-escape"),
        pytest.param("{{ strftime_now('%%') }}", {}, "%", id="strftime_now"),
        pytest.param("{% if tools is not none %}t{% endif %}", {}, "", id="tools-defined"),
        pytest.param("{% if tools is not none %}t{% endif %}", {"tools": []}, "t", id="tools-given"),
        pytest.param("{{ 'on' if enable_thinking else 'off' }}", {"enable_thinking": True}, "on", id="argument"),
        pytest.param("{% generation %}x{% endgeneration %}y", {}, "xy", id="generation-tag"),
        pytest.param("{% for i in range(9) %}{{ i }}{% break %}{% endfor %}", {}, "0", id="loop-controls"),
        pytest.param(
            "{% if not date is defined %}{% set date = 'today' %}{% endif %}{{ date }}",
            {"date": "1 May"},
            "1 May",
            id="argument-with-default",
        ),
    ],
)
def test_template_renders_like_transformers(source, arguments, text):
    chat_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    expected = chat_utils.render_jinja_template(
        [HELLO], chat_template=source, add_generation_prompt=True, bos_token="<s>", **{"tools": None, **arguments}
    )
    assert render(source, **arguments) == text == expected[0][0]


def test_template_sees_no_key_without_value():
    source = "{{ 'content' in messages[0] }}"
    assert render(source, [{"role": "assistant", "content": None, "tool_calls": [1]}]) == "False"


def test_template_argument_that_is_never_used_is_named():
    with pytest.raises(ValueError, match="does not use enable_thinking, mode; it uses bos_token"):
        render("{{ bos_token }}", mode=1, enable_thinking=True)


def test_template_error_is_a_value_error():
    with pytest.raises(ValueError, match="refused the messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="cannot be parsed"):
        render("{% if %}")


def test_template_cannot_reach_python():
    with pytest.raises(ValueError, match="refused the messages"):
        render("{{ ''.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="refused the messages"):
        render("{{ messages.append(1) }}")
