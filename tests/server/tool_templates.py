"""Chat templates that know tools, in the style of the model families, and their control tokens."""

from __future__ import annotations

QWEN = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nAnswer with <tool_call>{\\"name\\": ..., \\"arguments\\": ...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response>' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{ '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking %}{{ '<think>\\n' }}{%- endif %}{%- endif %}"""

LLAMA3 = """\
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{%- if tools and loop.first %}{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length > 1 %}{{ raise_exception('only single tool-calls at once!') }}{% endif %}
{{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
{{- message.tool_calls[0].function.arguments | tojson + '}' }}
{%- else %}{{ message.content | trim }}{% endif %}{{ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}{{ message.content + '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids must have length 9') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
{%- endfor %}{{ ']</s>' }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception('ids must have length 9') }}{% endif %}
{{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{ message.content + '</s>' }}{% endif %}
{%- endfor %}"""

NAMED = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
{%- endfor %}{{ '</s>' }}{% endif %}
{%- endfor %}"""

_NAMES = (
    "<|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|python_tag|> </s> [INST] "
    "[/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [ARGS] [TOOL_RESULTS] [/TOOL_RESULTS]"
)
CONTROL = {text: 256 + i for i, text in enumerate(_NAMES.split())}
