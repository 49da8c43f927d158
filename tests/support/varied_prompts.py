"""Twenty prompts that differ in length, language and kind, for comparing engines."""

_ESSAY = (
    "The tide rises and falls twice a day along most coasts, drawn by the moon and, less strongly, by the sun. "
    "Harbour masters once kept tables of high water by hand, and ships waited outside the bar for depth. "
)

VARIED_PROMPTS: tuple[str, ...] = (
    "Hi",
    "The capital of France is",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nOne word.<|im_end|>\n<|im_start|>user\nSky colour?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "#include <stdio.h>\n\nint main(void) {\n\tprintf(",
    "SELECT name, COUNT(*) FROM orders WHERE",
    '{"name": "tidegate", "version": "0.1.0", "tags": [',
    "สวัสดีครับ วันนี้อากาศ",
    "<|im_start|>user\nประเทศไทยอยู่ที่ไหน<|im_end|>\n<|im_start|>assistant\n",
    "I love this 😀🎉🚀 because",
    "👩‍👩‍👧‍👦 🇩🇪 ❤️‍🔥",
    "中文：今天天气很好，",  # noqa: RUF001 Chinese punctuation
    "日本の首都は",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "     indented    with   runs of   spaces\n\n\n\tand tabs",
    "Q: 12 + 30 = ?\nA:",
    "Once upon a time, in a village by the sea,",
    _ESSAY * 6 + "In short,",
    _ESSAY * 36 + "To sum up the text above:",
)
"""The last is over 1,500 tokens long in SmolLM2's vocabulary."""
