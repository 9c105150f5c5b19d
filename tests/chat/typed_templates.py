"""Chat templates in the style of the model families, for tests of what clients may type into them."""

from __future__ import annotations

SMOLLM2 = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- if tools is not none %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\nYou may call these functions:\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- set call = message.tool_calls[0].function %}
        {%- if call.name in ['brave_search', 'wolfram_alpha'] or call.arguments is string %}
            {{- '<|python_tag|>' + call.name + '.call(' }}
            {%- for name, value in call.arguments | items %}
                {{- name + '="' ~ value ~ '"' }}{% if not loop.last %}, {% endif %}
            {%- endfor %}
            {{- ')<|eom_id|>' }}
        {%- else %}
            {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
        {%- endif %}
    {%- elif message.role in ('tool', 'ipython') %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

GEMMA = """\
{%- macro without_thoughts(text) -%}
    {%- set kept = namespace(text='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set kept.text = kept.text + part.split('<|channel>')[0] -%}
    {%- endfor -%}
    {{- kept.text | trim -}}
{%- endmacro -%}
{{ bos_token }}
{%- if tools %}<start_of_turn>developer
{% for t in tools %}{% set f = t.function %}
{{ f.name }}({{ f.parameters.properties | join(', ') }}): {{ f.description }}
{% endfor %}<end_of_turn>
{% endif -%}
{%- for message in messages -%}
    {%- set role = 'model' if message.role == 'assistant' else message.role -%}
    {{ '<start_of_turn>' + role + '\\n' + (message.name ~ ': ' if message.name else '') }}
    {%- if message.tool_calls is defined -%}
        {%- for call in message.tool_calls -%}
            <{{ call.function.name }}>{{ call.function.arguments }}</{{ call.function.name }}>
        {%- endfor -%}
    {%- endif -%}
    {{ without_thoughts(message.content) + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and loop.last %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for t in tools %}{{- t | tojson }}{% if not loop.last %}, {% endif %}{%- endfor %}
            {{- '][/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson }}{{- ', "id": "' + (call.id or '') + '"}' }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

QWEN = """\
{%- if tools %}<|im_start|>system
# Tools
<tools>{% for t in tools %}
{{ t | tojson }}{% endfor %}
</tools><|im_end|>
{% endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

PHI = """\
{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

TEMPLATES = {
    "SmolLM2": SMOLLM2,
    "Llama 3": LLAMA3,
    "Gemma": GEMMA,
    "Mistral": MISTRAL,
    "Qwen": QWEN,
    "Phi": PHI,
}

_NAMES = (
    "<|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> "
    "<|python_tag|> <start_of_turn> <end_of_turn> <bos> <eos> [INST] [/INST] [AVAILABLE_TOOLS] "
    "[/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS] <s> </s> <|user|> <|assistant|> "
    "<|system|> <|tool|> <|end|>"
)
CONTROL = {text: number for number, text in enumerate(_NAMES.split())}
