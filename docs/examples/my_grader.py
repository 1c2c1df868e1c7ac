"""An async reward from a grader over HTTP; all replies of a batch are graded concurrently."""

import httpx

from rl4dialog import RewardFunctionRegistry

client = httpx.AsyncClient(base_url="http://localhost:8000")


@RewardFunctionRegistry.register("grader")
async def grader(prompt_text, gen_text, ref_texts, meta_info):
    """The grade, from 0 to 10."""
    answer = await client.post("/grade", json={"prompt": prompt_text, "reply": gen_text})
    answer.raise_for_status()
    return answer.json()["grade"]
