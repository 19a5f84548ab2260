"""Small templates, one group of constructs each, and their variables, for tools/golden_templates.py."""

M = {"n": None, "items": [1, 2], "s": "abc", "d": {"k": "v"}}
VARIABLES = {"m": M, "l": [3, 1, 2], "s": "Hello World", "users": [
    {"name": "b", "age": 2, "a": {"x": [5]}}, {"name": "A", "age": 1}, {"name": "c", "age": 3}],
    "u": "ß ŉ ǆ ﬁ ΑΣ σ İ", "t": "  x\u00a0\n", "f": 1.5, "big": 123456789012345678,
    "tool": {"type": "object", "properties": {"a": {"type": "string"}}, "keys": 1}}

PLAIN = r"""
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 4 / 2 }}
{{ 1.5 + 1 }} {{ 1e3 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }} {{ -0.0 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_0.5e1 }}
{{ true + true }} {{ -true }} {{ +5 }} {{ - -5 }} {{ -2 ** 2 }}
{{ 'a' + 'b' }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ [1] + [2] }} {{ [1] * 2 }} {{ (1,) + (2, 3) }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ none == none }}
{{ 'b' > 'a' }} {{ [1, 2] < [1, 3] }} {{ 'a' in 'abc' }} {{ 1 in [1] }} {{ 'k' in m.d }} {{ 'x' not in 'abc' }}
{{ not true }} {{ not m.x is defined }} {{ not 1 == 2 }} {{ 1 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ none and 1 }}
{{ 'y' if 1 else 'n' }} {{ 'y' if 0 }}| {{ 'a' if 0 else 'b' if 0 else 'c' }}
{{ m['s'] }} {{ m.s }} {{ m['d'].k }} {{ m.d['k'] }}
{{ m['items'] }} {{ tool.keys is defined }} {{ tool['keys'] }} {{ tool.properties.a.type }} {{ m.nope }}| {{ m['nope'] }}|
{{ l[0] }} {{ l[-1] }} {{ l[5] }}| {{ l.0 }} {{ s[0] }} {{ s[-1] }} {{ s[99] }}|
{{ l[1:] }} {{ l[:1] }} {{ l[::-1] }} {{ l[-2:] }} {{ l[5:] }} {{ l[::2] }} {{ s[1:3] }} {{ s[::-1] }} {{ s[:-1] }} {{ s[-3:-1] }} {{ s[::3] }}
{{ (1, 2)[0] }} {{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }} {{ [] }} {{ {} }} {{ {'a': 1, 'b': [2]} }} {{ {1: 2, none: 3}[1] }}
{{ [1, 2,] }} {{ {'a': 1,} }} {{ {'a': 1, 'a': 2} }}
{{ 'it''s' }} {{ "a\nb\tc\\d\"e'" }} {{ 'a\qb' }} {{ '\x41\u00e9\U0001F600\101' }} {{ 'a' 'b' "c" }}
{{ ["a'b", 'a"b', 'a\'"b', "\n\t\\\x00\x7f\u200b\u2028é😀"] }}
{{ nope }}| {{ nope.x }}
{{ nope[0] }}
{{ nope() }}
{{ nope + 1 }}
{{ 1 + nope }}
{{ nope < 1 }}
{{ nope == nope2 }} {{ nope == none }} {{ nope != 1 }} {{ nope in [1] }} {{ [nope] }} {{ nope|length }} {{ nope|list }} {{ nope ~ 'x' }}
{{ 1 in nope }} {{ nope|default('d') }} {{ ''|default('d') }}| {{ ''|default('d', true) }} {{ none|d('x') }} {{ m.x|d }}|
{{ nope|upper }}| {{ nope|trim }}| {{ nope|join(',') }}| {{ nope|first }}| {{ nope|string }}|
{{ nope|int }}
{{ nope|float }}
{{ nope|tojson }}
{{ nope|last }}
{{ nope|items|list }} {{ nope is string }} {{ nope is iterable }} {{ nope is sequence }} {{ nope is mapping }} {{ nope is none }}
{% for x in nope %}a{% else %}b{% endfor %}
{% for x in none %}a{% endfor %}
{% for x in 5 %}a{% endfor %}
{% for k in m.d %}{{ k }}{% endfor %}{% for c in 'aé😀' %}[{{ c }}]{% endfor %}
{% for k, v in m.d.items() %}{{ k }}={{ v }}{% endfor %}{% for k, v in m.d|items %}{{ k }}={{ v }}{% endfor %}
{% for k, v in [(1, 2), [3, 4], 'ab'] %}{{ k }}{{ v }} {% endfor %}
{% for k, v in [(1, 2, 3)] %}{{ k }}{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{{ loop.depth }} {% endfor %}
{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}|{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% break %}{% else %}else{% endfor %}|{% for x in l %}{% continue %}{% else %}else{% endfor %}
{% for x in range(3) %}{{ x }}{% endfor %} {{ range(1, 10, 3)|list }} {{ range(3, 0, -1)|list }} {{ range(5)[1] }} {{ range(5)|length }} {{ 2 in range(3) }}
{{ range(200000) }}
{{ range(0, 5, 0)|list }}
{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}{% for x in [1] %}{% set a = 3 %}{{ a }}{% endfor %}{{ a }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (d, e) = [5, 6] %}{{ d }}{{ e }}
{% set a, b = [1] %}
{% set ns = namespace(x=1, l=[]) %}{% for i in l %}{% set ns.x = ns.x + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.x }}{{ ns.l }}{{ ns.y is defined }}{{ ns.y }}|
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns['b'] }}{% set ns.c = 3 %}{{ ns.c }}
{% set q = {} %}{% set q.x = 1 %}
{% set x.y = 1 %}
{% set b %} hi {{ s }} {% endset %}[{{ b }}]{% set c | trim | upper %} hi {% endset %}[{{ c }}]
{% set a = 1 %}{% set b %}{% set a = 2 %}{{ a }}{% endset %}{{ a }}{{ b }}
{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(1, c='y') }} {{ f(b=5, a=6) }} {{ f() }}|
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(z=2) }}
{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, z=4) }}
{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(7) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro f(x) %}{{ x }}{{ y }}{% endmacro %}{% set y = 5 %}{{ f(1) }}{% set y = 6 %}{{ f(2) }}
{% macro f() %}{% set z = 9 %}{{ z }}{% endmacro %}{{ f() }}{{ z is defined }} {{ f()|upper ~ f() }} {{ f() is string }}
{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{{ s }}{% endcall %}
{% macro f(l) %}{% for i in l %}{{ caller(i) }};{% endfor %}{% endmacro %}{% call(x) f(l) %}[{{ x }}]{% endcall %}
{% macro f() %}x{% endmacro %}{% call f() %}in{% endcall %}
{% macro f(ns) %}{% set ns.v = 3 %}{% endmacro %}{% set n = namespace(v=1) %}{{ f(n) }}{{ n.v }}
{% for i in l %}{% macro g(x) %}{{ i }}{{ x }}{% endmacro %}{{ g('a') }}{% endfor %}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b')|trim %} aaa {% endfilter %}
{% with a = 1, b = s %}{{ a }}{{ b }}{% endwith %}{{ a is defined }} {% with %}x{% endwith %}
{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% generation %}{{ s }}{% set a = 1 %}{% endgeneration %}{{ a is defined }}
{% raw %}{{ x }} {% if %}{% endraw %} {%- raw -%} {{ y }} {%- endraw -%} z
{# comment #}a{#- b -#} c {#+ d +#}
{% if 0 %}a{% elif 1 %}b{% elif 1 %}c{% else %}d{% endif %}{% if 0 %}{% else %}e{% endif %}{% if: %}
{% if none %}a{% elif [] %}b{% elif {} %}c{% elif '' %}d{% elif 0.0 %}e{% elif nope %}f{% else %}g{% endif %}
{{ s|upper }} {{ s|lower }} {{ s|title }} {{ 'hELLO wORLD-x (y'|title }} {{ 'hELLO'|capitalize }} {{ s|length }} {{ s|count }} {{ s|reverse }}
{{ u|upper }} {{ u|lower }} {{ u|title }} {{ u|capitalize }} {{ u.upper() }} {{ u.title() }} {{ 'ΑΣΑ ΑΣ. ΣΑ'|lower }} {{ 'ǆ'.title() }} {{ "they're bill's"|title }} {{ "they're bill's".title() }}
[{{ t|trim }}] [{{ t.strip() }}] [{{ 'xxabx'.strip('x') }}] [{{ 'xyaxy'.lstrip('yx') }}] [{{ 'abab'.rstrip('ab') }}]| [{{ '--a--'|trim('-') }}] [{{ '  a '.strip(none) }}]
{{ 'a,b,,c'.split(',') }} {{ 'a,b,,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ ' a  b c '.split(none, 1) }} {{ 'abc'.split('') }}
{{ 'a,b,,c'.rsplit(',', 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ 'aaa'.rsplit('aa') }} {{ 'aaa'.split('aa') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a b'.split(maxsplit=0) }} {{ 'a.b.c'.split(sep='.', maxsplit=1) }}
{{ 'a\nb\r\nc\rd\u2028e\x0bf\n'.splitlines() }} {{ 'a\nb\n'.splitlines(true) }}
{{ s.startswith('He') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.startswith('W', 6) }} {{ s.endswith('') }} {{ s.startswith(1) }}
{{ 'aaa'.replace('a', 'b') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ 'é'.replace('', '-') }} {{ 'aaaa'|replace('aa', 'b') }} {{ 'aaa'|replace('a', 'b', 1) }} {{ 5|replace(5, 6) }}
{{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.find('o', 5) }} {{ 'ééa'.find('a') }} {{ s.count('o') }} {{ 'aaa'.count('aa') }} {{ 'ab'.count('') }} {{ s.index('W') }} {{ s.index('zz') }}
{{ s.upper() }} {{ s.lower() }} {{ 'aB'.capitalize() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \n'.isspace() }} {{ 'A1'.isupper() }} {{ 'a1'.islower() }} {{ '1'.islower() }}
{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.removesuffix('x') }}
{{ '-'.join(['a', 'b']) }} {{ '-'.join('ab') }} {{ ''.join([]) }}| {{ '-'.join([1]) }}
{{ '{} {}'.format(1, 'a') }} {{ '{1} {0}'.format(1, 'a') }} {{ '{a}{{}}'.format(a=5) }} {{ '{}'.format([1, 'x']) }}
{{ '{}'.format() }}
{{ '{'.format() }}
{{ '%s %d %r' % ('a', 5, 'b') }} {{ '%s' % 'x' }} {{ '%05.2f|%-5s|%5s|%x' % (3.14159, 'a', 'é', 255) }} {{ '%%' % () }} {{ '%(a)s' % {'a': 1} }} {{ '%s-%s'|format('a', 1) }}
{{ '%s' % (1, 2) }}
{{ '%s %s' % 'a' }}
{{ '%d' % 'a' }}
{{ l|join }} {{ l|join(', ') }} {{ users|join(',', attribute='name') }} {{ 'abc'|join('-') }} {{ m.d|join }} {{ [none, 1.0, true, 'x']|join('|') }}
{{ l|first }} {{ l|last }} {{ []|first }}| {{ []|last }}| {{ 'abc'|first }} {{ m.d|first }} {{ m.d|last }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ users|sort(attribute='age')|map(attribute='name')|join }} {{ users|sort(attribute='name')|map(attribute='name')|list }}
{{ [1, 'a']|sort }}
{{ l|min }} {{ l|max }} {{ []|min }}| {{ users|max(attribute='age') }} {{ ['b', 'A']|min }}
{{ l|sum }} {{ users|sum(attribute='age') }} {{ []|sum }} {{ [1.5, 2]|sum }} {{ l|sum(start=10) }}
{{ l|list }} {{ 'ab'|list }} {{ m.d|list }} {{ l|reverse|list }} {{ [1, 1, 2]|unique|list }} {{ ['a', 'A', 'b']|unique|list }} {{ l|batch(2)|list }} {{ l|batch(2, 0)|list }}
{{ l|map('string')|list }} {{ users|map(attribute='a.x.0')|list }} {{ users|map(attribute='zz', default='-')|list }} {{ ['a ', ' b']|map('trim')|map('upper')|join }} {{ ['a']|map('replace', 'a', 'b')|list }}
{{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ l|select('gt', 1)|list }} {{ [0, 1, '']|select|list }} {{ [0, 1]|reject|list }} {{ l|select('in', [1, 2])|list }} {{ l|reject('equalto', 1)|list }}
{{ users|selectattr('age', '>', 1)|map(attribute='name')|list }} {{ users|selectattr('a')|list|length }} {{ users|rejectattr('a')|list|length }} {{ users|selectattr('a', 'defined')|list|length }} {{ users|selectattr('name', 'equalto', 'A')|first }} {{ users|rejectattr('age', 'eq', 1)|list|length }}
{% set g = l|select('odd') %}{{ g|list }}{{ g|list }}{% if l|select('none') %}true{% endif %}
{{ (l|select('odd'))|length }}
{{ (l|map('string'))[0] }}
{{ m.d|dictsort }} {{ {'b': 1, 'A': 2}|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'a': 2}|dictsort(false, 'value') }} {{ {'b': 1, 'a': 2}|dictsort(reverse=true) }}
{{ m.d|items|list }} {{ m.d.items() }} {{ m.d.keys() }} {{ m.d.values() }} {{ m.d.keys()|list }} {{ m.d.items()|list }} {{ m.d.get('k') }} {{ m.d.get('z') }} {{ m.d.get('z', 5) }} {{ m.d.items()|length }}
{{ [1]|items|list }}
{{ l.append(1) }}
{{ m.pop('s') }}
{{ m.update({'a': 1}) }}
{{ l.append }}| {{ l.append is defined }} {{ l.index(1) }} {{ l.count(1) }} {{ l.copy() }} {{ m.d.copy() }}
{{ '3'|int }} {{ '3.7'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ 3.9|int }} {{ -3.9|int }} {{ ' 5 '|int }} {{ '1_0'|int }} {{ none|int }} {{ true|int }} {{ '1e2'|int }} {{ ''|int }} {{ [1]|int }}
{{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ '1e3'|float }} {{ ' 2 '|float }} {{ 'inf'|float }} {{ 'nan'|float }}
{{ -5|abs }} {{ -5.5|abs }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 2.9|round(method='floor') }} {{ 5|round }} {{ 1.005|round(2) }}
{{ 'a\nb\n\nc'|indent }} | {{ 'a\nb'|indent(2, true) }} | {{ 'a\n\nb'|indent(2, blank=true) }} | {{ 'a\nb'|indent('>>') }} | {{ 'a\n'|indent }}| {{ ''|indent(2, first=true) }}|
{{ '<b>'|escape }} {{ '<b>'|e }} {{ '<b>'|safe }} {{ ('<b>'|safe) + '<c>' }} {{ '<x>' + ('<b>'|safe) }} {{ ('<b>'|safe|upper) + '<' }} {{ ('<b>'|safe) ~ '<' }} {{ ['<b>'|safe] }} {{ ('<a>'|safe).strip() + '<' }} {{ ('<b>'|safe) == '<b>' }}
{{ m|tojson }} {{ m|tojson(indent=2) }} {{ m|tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ 'é😀\u2028'|tojson(ensure_ascii=true) }} {{ 'é"\\/\x08\x0c\x1f\x7f'|tojson }}
{{ [1, 1.0, 1e16, 1e-5, true, none, (1, 2), {}, []]|tojson }} {{ {1: 2, true: 3, none: 4, 1.5: 5}|tojson }} {{ [[], {}, [1]]|tojson(indent=1) }} {{ [1]|tojson(true) }} {{ [1, [2]]|tojson(indent='--') }} {{ [1]|tojson(indent=0) }}
{{ (l|select('odd'))|tojson }}
{{ range(3)|tojson }}
{{ big|tojson }} {{ big }} {{ big + 1 }} {{ f|tojson }}
{{ '{"a": [1, 2.0, null, true], "é": "x"}'|from_json }} {{ ('[1]'|from_json)[0] }} {{ '{bad'|from_json }}
{{ 1 is number }} {{ 1.5 is number }} {{ true is number }} {{ '1' is number }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }}
{{ 's' is string }} {{ m is mapping }} {{ l is mapping }} {{ l is iterable }} {{ 's' is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ l is sequence }} {{ 's' is sequence }} {{ m is sequence }} {{ m.items() is sequence }} {{ (l|select) is sequence }} {{ (l|select) is iterable }} {{ range(2) is sequence }}
{{ 3 is odd }} {{ 3 is even }} {{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 'a' is eq 'a' }} {{ 1 is ne 2 }} {{ 2 is gt 1 }} {{ 1 is lt(2) }} {{ 1 is ge 1 }} {{ 1 is le 0 }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 'a' is sameas 'a' }} {{ none is sameas none }}
{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'Abc' is lower }} {{ '1' is upper }} {{ s is defined }} {{ nope is undefined }} {{ none is none }} {{ s is not none }} {{ range is callable }} {{ s is callable }}
{{ 'a' is odd }}
{{ s is string and l is sequence or nope }} {{ 1 is defined == true }}
{{ dict(a=1, b=2) }} {{ dict({'a': 1}, a=3) }} {{ dict() }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %y %a %p %I %-d %e %%') }}
{{ raise_exception('no') }}
{{ s|attr('upper') is defined }} {{ m|attr('zz') }}|
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1 // 0 }}
{{ 'a' - 1 }}
{{ [] + () }}
{{ 'a' < 1 }}
{{ none < 1 }}
{{ none + 1 }}
{{ none[0] }}| {{ none.x }}| {{ 5['x'] }}| {{ 5.x }}
{{ m.n[:1] }}
{{ m[:1] }}
{{ l['a'] }}| {{ s['upper']() }} {{ m[[1]] }}| {{ l[1.5] }}| {{ l[true] }} {{ l[none] }}|
{{ l[::0] }}
{{ l['a':] }}
{{ s() }}
{{ -'a' }}
{{ 'a' in 1 }}
{{ 1 in 'a' }}
{{ [1] in m }}
{{ {[1]: 2} }}
{{ m.items()[0] }}|
{{ s.nope }}| {{ s.nope() }}
{{ none|length }}
{{ 5|length }}
{{ 5|list }}
{{ 5|join }}
{{ 5|upper }} {{ none|upper }} {{ 5|trim }} {{ none|trim }} {{ [1]|string }} {{ 5|string + 'x' }} {{ none|string }} {{ 5|capitalize }}
{{ 'a' if nope else 'b' }} {{ nope if nope else 'b' }} {{ (nope or {}).x }}|
{{ [nope is defined, (s)] }} {{ (s)|lower }} {{ -1|abs }} {{ (1 + 2)|string }} {{ 'a' + 1|string }} {{ 'a' ~ 1 + 2 }} {{ 1 + 2 ~ 'a' }}
{{ '%d items' % l|length }} {{ l|length > 2 and s|length }} {{ not l|length }} {{ 'x' * 2 + 'y' }} {{ 2 + 3 * 2 ** 2 }} {{ 10 - 2 - 3 }} {{ 2 ** 3 ** 2 }}
{{- ' a' -}}   b   {{- 'c' }}   d {{+ 'e' }}
a  {%- if true -%}  b  {%- endif -%}  c
a {% if true %} b {% endif %} c
{{ "}}" }}{{ '{%' }}{{ {'a': {'b': {}}} }}{{ '%}' }}
{{ loop }}|{{ loop is defined }}{% set loop2 = 1 %}{{ loop2 }}
{{ (1 + 2) * 3 }}{{ [1, 2][1] }}{{ {'a': 'b'}.a }}{{ 'abc'[1] }}{{ 'abc'.upper()[0] }}{{ (s|lower).upper() }}{{ s|lower[0] }}
{{ 9223372036854775807 }} {{ -9223372036854775807 }}
{{ [1, 2, 3]|length is odd }} {{ l|length is eq 3 }} {{ not (s is string) }} {{ s is not string }}
{{ 1 if }}
{{ }}
{{ 1 +
{% if 1 %}
{% for %}
{% endfor %}
{% foo %}
{% set 1 = 2 %}
{% set true = 2 %}
{% macro f(a=1, b) %}{% endmacro %}
{{ 'abc }}
{{ [1, 2 }}
{{ (1, 2] }}
{{ a..b }}
{{ 1 2 }}
{{ 'a' is string is string }}
{{ l|nofilter }}
{{ l is notest }}
{{ f(**m) }}
{% macro f(a, b, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(*[1, 2]) }} {{ f(1, *[2]) }} {{ f(*[1], **{'b': 5, 'c': 6}) }} {{ f(a=1, *[]) }} {{ f(b=2, *[1]) }} {{ dict(**m.d) }}
{% macro f(a, b) %}{% endmacro %}{{ f(1, **{'a': 1}) }}
{{ dict(a=1, **{'a': 1}) }}
{{ dict(**5) }}
{{ range(*nope) }}
{# open
{% raw %} open
{{ a b }}
{{ 'x'|default(1, 2, 3) }}
{{ f(a=1, 2) }}
{% if 1 %}a{% else %}b{% else %}c{% endif %}
{% break %}
{% set x = 1 if 0 else 2 %}{{ x }}{% set y = l|length if l else 0 %}{{ y }}
{% set ns = namespace(a=1) %}{% if ns.a == 1 %}{% set ns.a = 2 %}{% endif %}{{ ns.a }}{% set ns2 = ns %}{% set ns2.a = 3 %}{{ ns.a }}
{% for u in users %}{% set o = u.name if not loop.first else 'first' %}{{ o }}{{ ',' if not loop.last }}{% endfor %}
{% for m in [m] %}{{ m.s }}{% endfor %}{{ m.s }}
{% for x in l[::-1] %}{{ x }}{% endfor %}{% for x in l|sort %}{{ x }}{% endfor %}{% for x in l + [9] %}{{ x }}{% endfor %}
{{ users[0]['a']['x'][0] }}{{ users[-1].name }}{{ users[1:][0].name }}{{ (users|first).name }}{{ users|map(attribute='name')|sort|join(' ') }}
{% set s = s.split(' ')[-1] %}{{ s }}{% set s = s[1:] %}{{ s }}
{% if 'Hello' in s and not s.endswith('!') and (l|length) >= 3 %}ok{% endif %}
{{ 'A'.join(l|map('string')) }} {{ (l|map('string')|list)[::-1]|join('-') }}
{% macro a() %}{% for x in l %}{{ x }}{% if loop.last %}!{% endif %}{% endfor %}{% endmacro %}{{ a() }}{{ a()|length }}
"""

EXACT = [
    "  {% if true %}\n    hi\n  {% endif %}\n  {{ 'x' }}\nend\n\n",
    "a\n  {%- if true %}\n b\n  {%- endif -%}\n  c\n",
    "a\n   {#- n -#}\n   b{# q #}\nc",
    "a {% if true +%}\nb{% endif %}\n\nc", "  {%+ if true %}y{% endif %}", "\t {% if true %}y{% endif %}",
    "a\r\nb\r\n{% if true %}\r\nc{% endif %}\r\n", "{% raw %}{{ a }}{% endraw %}", "a\rb\r", "\n", "\n\n", "\r\n\r\n", "",
    "a\n\u00a0 {% if true %}b{% endif %}", "a \u3000{%- if true -%}\u2003\n b{% endif %}", "{{ 'a\r\nb' }}|", "{{ 'a\\r\\nb' }}|",
    "a\n  {{ 'x' }}\n  {{- 'y' }}\n", "  {# c #}\n  {# d #} e\n", "x\n  {% raw %}\n  y\n  {% endraw %}\nz", "{% raw -%}\n a\n {%- endraw %}\nb",
    "{% if true %}\n\n\na{% endif %}\n\n\n", "{%- for x in [1,2] -%}\n  {{ x }}\n{%- endfor -%}\n", "{% for x in [1,2] %}\n  {{ x }}\n{% endfor %}\n",
    "{%   if   true   %}a{%endif%}{{1}}{{-1}}{{ - 1 }}", "{{ \n 1 \n }}\n{% set a =\n 1 %}\n{{ a }}", "a{#\n b\n#}\n\n c", "{{ 1 }}\n", "{% set x = 1 %}\n", "{% set x %}\n a\n{% endset %}\n[{{ x }}]",
    "a {%- set x = 1 %} b {{- x -}} c", "{# a #}  {# b #}", "x  {#- a -#}  y", "{% if true %}a\n  {%- else %}b{% endif %}", " {% if true -%} a {% endif +%} \n b", "{%- if true +%}\n a{% endif %}",
    "{{ 'a' -}}\n\n{{ 'b' }}", "{% filter indent(2) %}a\nb{% endfilter %}", "{{ \"a\nb\" }}", "{{ 'a\\\nb' }}",
    "{% macro f() -%}\n  x\n{%- endmacro %}\n[{{ f() }}]", "{% macro f() %}\n  x\n{% endmacro %}\n[{{ f() }}]", "{%if 1%}{%endif%}", "{ { {x} %} }} #}", "{{'{{'}}{{'}}'}}", "a{", "{", "a{{'b'}}{",
]

SNIPPETS = [line for line in PLAIN.split("\n") if line] + EXACT
