"""`LLM.get_tokenizer`: transformers' names over our tokenizer and the model's chat template."""

import pytest

from flyweight import LLM
from flyweight.errors import RequestError
from flyweight.requests.pretrained import PreTrainedTokenizer
from tiny_model import tiny_folder

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}{{ mood or '' }}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TALK = [{"role": "user", "content": "hi there"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(tiny_folder(tmp_path_factory.mktemp("named") / "m", chat_template=TEMPLATE))


@pytest.fixture(scope="module")
def tokenizer(llm: LLM) -> PreTrainedTokenizer:
    return llm.get_tokenizer()


def test_ids_and_text(llm: LLM, tokenizer: PreTrainedTokenizer) -> None:
    ids = llm.tokenizer.encode("hello there")
    assert tokenizer.encode("hello there") == ids
    assert tokenizer("hello there").input_ids == tokenizer("hello there")["input_ids"] == ids
    assert tokenizer("hello there").attention_mask == [1] * len(ids)
    assert tokenizer(["hello there", "hi"]).input_ids == [ids, tokenizer.encode("hi")]
    bare = tokenizer.encode("hello there", add_special_tokens=False)
    assert bare == llm.tokenizer.encode("hello there", add_special=False)
    assert tokenizer.decode(bare) == "hello there"
    assert tokenizer.decode(bare[0]) + tokenizer.decode(bare[1:]) == "hello there"
    assert tokenizer.batch_decode([bare, bare[:1]]) == ["hello there", tokenizer.decode(bare[:1])]


def test_special_tokens_are_kept_unless_requested(tokenizer: PreTrainedTokenizer) -> None:
    ids = [tokenizer.bos_token_id, *tokenizer.encode("hi", add_special_tokens=False)]
    assert None not in ids
    assert tokenizer.decode(ids) == f"{tokenizer.bos_token}hi"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi"
    assert tokenizer.bos_token_id in tokenizer.all_special_ids


def test_the_vocabulary(tokenizer: PreTrainedTokenizer) -> None:
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    back = tokenizer.convert_tokens_to_ids(names)
    assert all(names[token] == name for name, token in zip(names, back, strict=True) if name)
    assert tokenizer.convert_tokens_to_ids(tokenizer.eos_token) == tokenizer.eos_token_id
    assert tokenizer.convert_tokens_to_ids("no such token") is None
    assert tokenizer.get_vocab()[tokenizer.bos_token] == tokenizer.bos_token_id


def test_a_chat_is_rendered_as_chat_renders_it(llm: LLM, tokenizer: PreTrainedTokenizer) -> None:
    whole = llm.conversation(TALK)
    text = tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert text == whole["prompt"]
    ids = tokenizer.apply_chat_template(TALK, add_generation_prompt=True)
    assert ids == whole["prompt_token_ids"]
    named = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, return_dict=True)
    assert named.input_ids == ids
    begun = tokenizer.apply_chat_template(TALK, tokenize=False)
    assert begun == f"{tokenizer.bos_token}[user]hi there"  # transformers' default: no answer begun
    glad = tokenizer.apply_chat_template([TALK, TALK], tokenize=False, mood="glad")
    assert glad == [f"{begun}glad"] * 2
    own = tokenizer.apply_chat_template(
        TALK, chat_template="{{ messages[0].content }}!", tokenize=False
    )
    assert own == "hi there!"


def test_arrays_and_cutting_are_refused(tokenizer: PreTrainedTokenizer) -> None:
    with pytest.raises(RequestError, match="return_tensors = 'pt' is not supported"):
        tokenizer.apply_chat_template(TALK, return_tensors="pt")
    with pytest.raises(RequestError, match="max_length"):
        tokenizer.apply_chat_template(TALK, max_length=3)
