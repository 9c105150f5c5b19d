"""A thin, typed skin over llama.cpp's C API. It knows llama.cpp and nothing of requests.

Every return value is checked and every failure is a named exception of
:mod:`onceread.native.errors`. Objects own what they load: close them, or use them
as context managers. A context belongs to one thread.
"""
