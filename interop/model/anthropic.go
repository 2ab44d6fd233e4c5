package model

import (
	"encoding/json"
	"net/http"
)

// anthropic is the wire of Anthropic's messages: POST .../messages.
type anthropic struct{}

func (anthropic) read(_ string, body []byte) (ask, error) {
	var in struct {
		Model    string
		Stream   bool
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct {
			Name        string
			InputSchema schema `json:"input_schema"`
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return ask{}, err
	}
	a := ask{model: in.Model, stream: in.Stream}
	for _, m := range in.Messages {
		if m.Role != "user" {
			a.afterTool = false
			continue
		}
		// A prompt may stand behind tool results of an earlier turn, and the
		// runtime's own reminders behind a tool result of this one.
		if t := text(m.Content); t != "" {
			if _, _, ok := marker(t); ok {
				a.prompt, a.afterTool = t, false
				continue
			}
		}
		var parts []struct{ Type string }
		_ = json.Unmarshal(m.Content, &parts) // a plain string has no parts
		for _, p := range parts {
			a.afterTool = a.afterTool || p.Type == "tool_result"
		}
	}
	for _, t := range in.Tools {
		a.tools = append(a.tools, toolDef{name: t.Name, params: t.InputSchema})
	}
	return a, nil
}

func (anthropic) write(out *sender, a ask, r reply) {
	id := out.name("msg", 0)
	usage := obj{"input_tokens": InputTokens, "cache_read_input_tokens": CachedTokens, "cache_creation_input_tokens": 0, "output_tokens": OutputTokens}
	stop := "end_turn"
	switch {
	case r.calls != nil:
		stop = "tool_use"
	case r.cut:
		stop = "max_tokens"
	}
	if !a.stream {
		content := []any{obj{"type": "text", "text": join(r.chunks)}}
		for i, c := range r.calls {
			content = append(content, obj{"type": "tool_use", "id": out.name("toolu", i), "name": c.tool.name, "input": c.args})
		}
		out.object(http.StatusOK, obj{"id": id, "type": "message", "role": "assistant", "model": a.model, "content": content,
			"stop_reason": stop, "stop_sequence": nil, "usage": usage})
		return
	}
	ev := func(kind string, more obj) {
		more["type"] = kind
		out.event(kind, more)
	}
	ev("message_start", obj{"message": obj{"id": id, "type": "message", "role": "assistant", "model": a.model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": usage}})
	n := 0
	block := func(start obj, deltas func(send func(obj))) {
		ev("content_block_start", obj{"index": n, "content_block": start})
		deltas(func(d obj) { ev("content_block_delta", obj{"index": n, "delta": d}) })
		ev("content_block_stop", obj{"index": n})
		n++
	}
	if r.thought != "" {
		block(obj{"type": "thinking", "thinking": "", "signature": ""}, func(send func(obj)) {
			send(obj{"type": "thinking_delta", "thinking": r.thought})
			send(obj{"type": "signature_delta", "signature": "c2ln"})
		})
	}
	if len(r.chunks) > 0 {
		block(obj{"type": "text", "text": ""}, func(send func(obj)) {
			out.each(r.chunks, func(c string) { send(obj{"type": "text_delta", "text": c}) })
		})
	}
	for i, c := range r.calls {
		block(obj{"type": "tool_use", "id": out.name("toolu", i), "name": c.tool.name, "input": obj{}}, func(send func(obj)) {
			send(obj{"type": "input_json_delta", "partial_json": encode(c.args)})
		})
	}
	ev("message_delta", obj{"delta": obj{"stop_reason": stop, "stop_sequence": nil}, "usage": obj{"output_tokens": OutputTokens}})
	ev("message_stop", obj{})
}

func (anthropic) failure(status int, text string) any {
	names := map[int]string{400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
	name := names[status]
	if name == "" {
		name = "api_error"
	}
	return obj{"type": "error", "error": obj{"type": name, "message": text}}
}
