"""mini-swe-agent: its DefaultAgent over LitellmModel. Its one tool is bash; here an environment of
ours answers instead of a subprocess.

A crash: it writes its trajectory after each step, for a person to look at; it has no way to go on
from one.
"""

from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel

TOOL = "bash"


class Environment:
    """`LocalEnvironment` without the subprocess."""

    config = None

    def __init__(self, tool):
        self.tool = tool

    def execute(self, action, cwd=""):
        command = action["command"]
        if "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in command:
            raise Submitted(
                {
                    "role": "exit",
                    "content": "",
                    "extra": {"exit_status": "Submitted", "submission": ""},
                }
            )
        return {"output": self.tool(command.split()[1]), "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **kwargs):
        return {}

    def serialize(self):
        return {}


def make(url, tool):
    model = LitellmModel(
        model_name="openai/mock",
        model_kwargs={"api_base": url, "api_key": "none"},
        cost_tracking="ignore_errors",
    )
    return lambda: DefaultAgent(
        model,
        Environment(tool),
        system_template="You are a helpful assistant.",
        instance_template="{{task}}",
        step_limit=0,
        cost_limit=0,
    )


def ask(agent, text):
    fresh = agent()
    assert fresh.run(text)["exit_status"] == "Submitted"
    return fresh
