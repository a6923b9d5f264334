"""An evaluator in 20 lines: `python examples/http_evaluator/evaluator.py`."""

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

WORDS = ("solar", "waterproof", "two-year")
app = FastAPI()


class Question(BaseModel):
    candidate: str


@app.post("/score")
def score(question: Question) -> dict[str, object]:
    text, length = question.candidate.lower(), len(question.candidate)
    missing = [word for word in WORDS if word not in text]
    fits = 120 <= length <= 155
    points = len(WORDS) - len(missing) + fits
    return {"score": points / (len(WORDS) + 1), "detail": f"missing: {missing}, {length} characters (120 to 155)"}


if __name__ == "__main__":
    uvicorn.run(app, port=8766)
