"""An lm-eval model that says what a server decoded before, so that the harness judges it."""

from collections.abc import Mapping
from typing import Any, NoReturn

from lm_eval.api.model import LM
from transformers import PreTrainedTokenizerBase

from gistgate.core.request import Generation
from gistgate.lm_eval.model import Served
from gistgate.lm_eval.task import HarnessTask
from gistgate.models.tokenizers import encode, rendered, template


class AnsweredLM(LM):
    """Answers by the token ids of their prompts; documents without an answer get an empty one."""

    def __init__(
        self,
        task: HarnessTask,
        tokenizer: PreTrainedTokenizerBase,
        answers: Mapping[tuple[int, ...], Generation],
    ) -> None:
        super().__init__()
        self.task = task
        self.tokenizer = tokenizer
        self.answers = answers
        self.chat_template_args = task.prompting.arguments
        self.served = Served(list)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The harness's own method."""
        texts = []
        for request in requests:
            prompt = tuple(encode(self.tokenizer, request.args[0]))
            text = ""
            if prompt in self.answers:
                answer = self.answers[prompt]
                self.served[prompt].append(answer)
                text = self.task.text(self.tokenizer, answer.ids)
            texts.append(text)
        return texts

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The harness's own method."""
        return rendered(
            self.tokenizer, chat_history, add_generation_prompt, **self.chat_template_args
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The harness's own method: the text of the template."""
        if not chat_template:
            return None
        return template(self.tokenizer, self.chat_template_args.get("chat_template"))

    @property
    def tokenizer_name(self) -> str:
        """The harness's own property."""
        return str(self.tokenizer.name_or_path)

    def loglikelihood(self, requests: list[Any]) -> NoReturn:
        """Refused: tasks of GistGate generate texts."""
        raise NotImplementedError("Answers have no likelihoods here.")

    def loglikelihood_rolling(self, requests: list[Any]) -> NoReturn:
        """Refused, as `loglikelihood`."""
        raise NotImplementedError("Answers have no likelihoods here.")
