package model

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// chat is OpenAI's chat completions wire: POST .../chat/completions.
type chat struct{}

func (chat) read(_ string, body []byte) (ask, error) {
	var in struct {
		Model    string
		Stream   bool
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct {
			Function struct {
				Name       string
				Parameters schema
			}
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return ask{}, err
	}
	a := ask{model: in.Model, stream: in.Stream}
	for _, m := range in.Messages {
		a.afterTool = m.Role == "tool"
		if t := text(m.Content); m.Role == "user" {
			if _, _, ok := marker(t); ok {
				a.prompt = t
			}
		}
	}
	for _, t := range in.Tools {
		a.tools = append(a.tools, toolDef{name: t.Function.Name, params: t.Function.Parameters})
	}
	return a, nil
}

func (chat) write(out *sender, a ask, r reply) {
	usage := obj{
		"prompt_tokens": InputTokens, "completion_tokens": OutputTokens, "total_tokens": InputTokens + OutputTokens,
		"prompt_tokens_details":     obj{"cached_tokens": CachedTokens},
		"completion_tokens_details": obj{"reasoning_tokens": ThoughtTokens},
	}
	var calls []any
	for i, c := range r.calls {
		calls = append(calls, obj{"index": i, "id": out.name("call", i), "type": "function",
			"function": obj{"name": c.tool.name, "arguments": encode(c.args)}})
	}
	finish := "stop"
	switch {
	case calls != nil:
		finish = "tool_calls"
	case r.cut:
		finish = "length"
	}
	head := func(kind string) obj {
		return obj{"id": "chatcmpl-" + strconv.Itoa(out.id), "object": kind, "created": 1_700_000_000, "model": a.model}
	}
	if !a.stream {
		o, msg := head("chat.completion"), obj{"role": "assistant", "content": join(r.chunks)}
		if calls != nil {
			msg["tool_calls"] = calls
		}
		o["choices"] = []any{obj{"index": 0, "message": msg, "finish_reason": finish}}
		o["usage"] = usage
		out.object(http.StatusOK, o)
		return
	}
	delta := func(d obj, finish any) {
		o := head("chat.completion.chunk")
		o["choices"] = []any{obj{"index": 0, "delta": d, "finish_reason": finish}}
		out.event("", o)
	}
	delta(obj{"role": "assistant", "content": ""}, nil)
	if r.thought != "" {
		delta(obj{"reasoning_content": r.thought}, nil)
	}
	out.each(r.chunks, func(c string) { delta(obj{"content": c}, nil) })
	for _, c := range calls {
		delta(obj{"tool_calls": []any{c}}, nil)
	}
	delta(obj{}, finish)
	o := head("chat.completion.chunk")
	o["choices"], o["usage"] = []any{}, usage
	out.event("", o)
	out.raw("", "[DONE]")
}

func (chat) failure(status int, text string) any {
	return obj{"error": obj{"message": text, "type": "pretend", "code": strconv.Itoa(status)}}
}
