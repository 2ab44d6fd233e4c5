package model

import (
	"encoding/json"
	"net/http"
	"strings"
)

// responses is OpenAI's responses wire: POST .../responses.
type responses struct{}

type responsesTool struct {
	Type       string
	Name       string
	Parameters schema
	Tools      []responsesTool // of a namespace
}

func (responses) read(_ string, body []byte) (ask, error) {
	var in struct {
		Model  string
		Stream bool
		Input  json.RawMessage
		Tools  []responsesTool
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return ask{}, err
	}
	a := ask{model: in.Model, stream: in.Stream, prompt: text(in.Input)}
	var items []struct {
		Type    string
		Role    string
		Content json.RawMessage
	}
	if json.Unmarshal(in.Input, &items) == nil {
		a.prompt = ""
	}
	for _, it := range items {
		a.afterTool = strings.HasSuffix(it.Type, "_output")
		if t := text(it.Content); it.Role == "user" {
			if _, _, ok := marker(t); ok {
				a.prompt = t
			}
		}
	}
	a.tools = responsesTools(nil, in.Tools)
	return a, nil
}

func responsesTools(all []toolDef, tools []responsesTool) []toolDef {
	for _, t := range tools {
		switch t.Type {
		case "local_shell":
			all = append(all, toolDef{name: "local_shell", local: true})
		case "namespace":
			all = responsesTools(all, t.Tools)
		default:
			if t.Name != "" {
				all = append(all, toolDef{name: t.Name, params: t.Parameters, free: t.Type == "custom"})
			}
		}
	}
	return all
}

func (responses) write(out *sender, a ask, r reply) {
	usage := obj{
		"input_tokens": InputTokens, "output_tokens": OutputTokens, "total_tokens": InputTokens + OutputTokens,
		"input_tokens_details":  obj{"cached_tokens": CachedTokens},
		"output_tokens_details": obj{"reasoning_tokens": ThoughtTokens},
	}
	answer := obj{"id": out.name("resp", 0), "object": "response", "created_at": 1_700_000_000, "model": a.model, "status": "in_progress", "output": []any{}}
	ev := func(kind string, more obj) {
		if a.stream {
			more["type"], more["sequence_number"] = kind, out.ordinal
			out.event(kind, more)
		}
	}
	ev("response.created", obj{"response": answer})
	var items []any
	if r.thought != "" {
		items = append(items, responsesThought(out, ev, r.thought))
	}
	items = append(items, responsesMessage(out, ev, len(items), r.chunks))
	for i, c := range r.calls {
		it := responsesCall(out, i, c)
		ev("response.output_item.added", obj{"output_index": len(items), "item": it})
		ev("response.output_item.done", obj{"output_index": len(items), "item": it})
		items = append(items, it)
	}
	done := obj{"id": answer["id"], "object": "response", "created_at": answer["created_at"], "model": a.model,
		"status": "completed", "output": items, "usage": usage}
	kind := "response.completed"
	if r.cut {
		kind, done["status"], done["incomplete_details"] = "response.incomplete", "incomplete", obj{"reason": "max_output_tokens"}
	}
	ev(kind, obj{"response": done})
	if !a.stream {
		out.object(http.StatusOK, done)
	}
}

func responsesThought(out *sender, ev func(string, obj), thought string) obj {
	id := out.name("rs", 0)
	ev("response.output_item.added", obj{"output_index": 0, "item": obj{"type": "reasoning", "id": id, "summary": []any{}}})
	ev("response.reasoning_summary_part.added", obj{"item_id": id, "output_index": 0, "summary_index": 0, "part": obj{"type": "summary_text", "text": ""}})
	ev("response.reasoning_summary_text.delta", obj{"item_id": id, "output_index": 0, "summary_index": 0, "delta": thought})
	it := obj{"type": "reasoning", "id": id, "summary": []any{obj{"type": "summary_text", "text": thought}}, "encrypted_content": "x"}
	ev("response.output_item.done", obj{"output_index": 0, "item": it})
	return it
}

func responsesMessage(out *sender, ev func(string, obj), index int, chunks []string) obj {
	id := out.name("msg", 0)
	at := func(more obj) obj {
		more["item_id"], more["output_index"], more["content_index"] = id, index, 0
		return more
	}
	part := func(s string) obj { return obj{"type": "output_text", "text": s, "annotations": []any{}} }
	ev("response.output_item.added", obj{"output_index": index,
		"item": obj{"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []any{}}})
	ev("response.content_part.added", at(obj{"part": part("")}))
	out.each(chunks, func(c string) { ev("response.output_text.delta", at(obj{"delta": c})) })
	ev("response.output_text.done", at(obj{"text": join(chunks)}))
	it := obj{"type": "message", "id": id, "role": "assistant", "status": "completed", "content": []any{part(join(chunks))}}
	ev("response.output_item.done", obj{"output_index": index, "item": it})
	return it
}

func responsesCall(out *sender, n int, c call) obj {
	id := out.name("call", n)
	switch {
	case c.tool.local:
		return obj{"type": "local_shell_call", "id": "l" + id, "call_id": id, "status": "completed",
			"action": obj{"type": "exec", "command": []any{"bash", "-lc", c.args["command"]}}}
	case c.tool.free:
		return obj{"type": "custom_tool_call", "id": "c" + id, "call_id": id, "name": c.tool.name, "input": c.text, "status": "completed"}
	}
	return obj{"type": "function_call", "id": "f" + id, "call_id": id, "name": c.tool.name, "arguments": encode(c.args), "status": "completed"}
}

func (responses) failure(status int, text string) any { return chat{}.failure(status, text) }
