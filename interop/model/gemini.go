package model

import (
	"encoding/json"
	"net/http"
	"strings"
)

// gemini is the wire of Google's generative language service:
// POST /v1beta/models/MODEL:generateContent, or :streamGenerateContent?alt=sse.
type gemini struct{}

func (gemini) read(path string, body []byte) (ask, error) {
	var in struct {
		Contents []struct {
			Role  string
			Parts []struct {
				Text             string
				FunctionResponse json.RawMessage
			}
		}
		Tools []struct {
			FunctionDeclarations []struct {
				Name                 string
				Parameters           schema
				ParametersJSONSchema *schema `json:"parametersJsonSchema"`
			}
		}
		GenerationConfig struct {
			ResponseMimeType   string
			ResponseSchema     *schema
			ResponseJSONSchema *schema `json:"responseJsonSchema"`
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return ask{}, err
	}
	_, name, _ := strings.Cut(path, "/models/")
	name, verb, _ := strings.Cut(name, ":")
	a := ask{model: name, stream: strings.HasPrefix(verb, "stream")}
	for _, c := range in.Contents {
		a.afterTool = false
		for _, p := range c.Parts {
			a.afterTool = a.afterTool || p.FunctionResponse != nil
			if _, _, ok := marker(p.Text); ok && c.Role == "user" {
				a.prompt = p.Text
			}
		}
	}
	for _, t := range in.Tools {
		for _, f := range t.FunctionDeclarations {
			if f.ParametersJSONSchema != nil {
				f.Parameters = *f.ParametersJSONSchema
			}
			a.tools = append(a.tools, toolDef{name: f.Name, params: f.Parameters})
		}
	}
	conf := in.GenerationConfig
	switch {
	case conf.ResponseJSONSchema != nil:
		a.form = conf.ResponseJSONSchema
	case conf.ResponseSchema != nil:
		a.form = conf.ResponseSchema
	case conf.ResponseMimeType == "application/json":
		a.form = &schema{}
	}
	return a, nil
}

func (gemini) write(out *sender, a ask, r reply) {
	usage := obj{
		"promptTokenCount": InputTokens, "candidatesTokenCount": OutputTokens, "cachedContentTokenCount": CachedTokens,
		"thoughtsTokenCount": ThoughtTokens, "totalTokenCount": InputTokens + OutputTokens + ThoughtTokens,
	}
	piece := func(parts []any, finish string) obj {
		cand := obj{"index": 0, "content": obj{"role": "model", "parts": parts}}
		o := obj{"modelVersion": a.model, "responseId": out.name("resp", 0), "candidates": []any{cand}}
		if finish != "" {
			cand["finishReason"] = finish
			o["usageMetadata"] = usage
		}
		return o
	}
	var calls []any
	for _, c := range r.calls {
		calls = append(calls, obj{"functionCall": obj{"name": c.tool.name, "args": c.args}})
	}
	finish := "STOP"
	if r.cut {
		finish = "MAX_TOKENS"
	}
	if !a.stream {
		out.object(http.StatusOK, piece(append([]any{obj{"text": join(r.chunks)}}, calls...), finish))
		return
	}
	if r.thought != "" {
		out.event("", piece([]any{obj{"text": "**Thinking**\n" + r.thought, "thought": true}}, ""))
	}
	out.each(r.chunks, func(c string) { out.event("", piece([]any{obj{"text": c}}, "")) })
	if calls == nil {
		calls = []any{obj{"text": ""}}
	}
	out.event("", piece(calls, finish))
}

func (gemini) failure(status int, text string) any {
	names := map[int]string{400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}
	name := names[status]
	if name == "" {
		name = "INTERNAL"
	}
	return obj{"error": obj{"code": status, "message": text, "status": name}}
}
