package model

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// asking holds, for each wire, a request with a prompt, one tool, and, for
// after, the tool's outcome behind it.
var asking = []struct{ name, path, request, after, tool string }{
	{"gemini", "/v1beta/models/m:streamGenerateContent",
		`{"contents":[{"role":"user","parts":[{"text":"PROMPT"}]}AFTER],"tools":[{"functionDeclarations":[{"name":"run_shell_command","parametersJsonSchema":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}]}]}`,
		`,{"role":"user","parts":[{"functionResponse":{"name":"run_shell_command"}}]}`, `"functionCall":{"args":{"command":"ls -l"},"name":"run_shell_command"}`},
	{"chat", "/v1/chat/completions",
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"PROMPT"}AFTER],"tools":[{"type":"function","function":{"name":"bash","parameters":{"properties":{"command":{"type":"string"}}}}}]}`,
		`,{"role":"tool","content":"x"}`, `"function":{"arguments":"{\"command\":\"ls -l\"}","name":"bash"}`},
	{"responses", "/v1/responses",
		`{"model":"m","stream":true,"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"PROMPT"}]}AFTER],"tools":[{"type":"function","name":"exec_command","parameters":{"properties":{"cmd":{"type":"string"}}}}]}`,
		`,{"type":"function_call_output","output":"x"}`, `"arguments":"{\"cmd\":\"ls -l\"}"`},
	{"anthropic", "/v1/messages",
		`{"model":"m","stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"PROMPT"}]}AFTER],"tools":[{"name":"Bash","input_schema":{"properties":{"command":{"type":"string"}}}}]}`,
		`,{"role":"assistant","content":[]},{"role":"user","content":[{"type":"tool_result","content":"x"}]}`, `"partial_json":"{\"command\":\"ls -l\"}"`},
}

func post(t *testing.T, ctx context.Context, url, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestWires(t *testing.T) {
	s, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, w := range asking {
		t.Run(w.name, func(t *testing.T) {
			send := func(prompt, after string) (int, string) {
				t.Helper()
				body := strings.NewReplacer("PROMPT", prompt, "AFTER", after).Replace(w.request)
				status, answer, err := post(t, t.Context(), s.URL+w.path, body)
				if err != nil {
					t.Fatal(err)
				}
				return status, answer
			}
			if status, answer := send("[[text]] hi", ""); status != 200 || !strings.Contains(answer, `"pretend "`) || !strings.Contains(answer, "1111") || !strings.Contains(answer, "222") {
				t.Errorf("text: %d %s", status, answer)
			}
			if _, answer := send("[[shell ls -l]]", ""); !strings.Contains(answer, w.tool) {
				t.Errorf("shell: %s", answer)
			}
			if _, answer := send("[[shell ls -l]]", w.after); !strings.Contains(answer, `"over."`) {
				t.Errorf("after the tool: %s", answer)
			}
			if _, answer := send("[[think]]", ""); !strings.Contains(answer, Thought) {
				t.Errorf("think: %s", answer)
			}
			if _, answer := send("[[big]]", ""); !strings.Contains(answer, strings.Repeat("B", BigLength)) {
				t.Errorf("big: %d bytes", len(answer))
			}
			if status, answer := send("[[http 429]]", ""); status != 429 || !json.Valid([]byte(answer)) {
				t.Errorf("error: %d %s", status, answer)
			}
			all := s.Requests()
			last := all[len(all)-1]
			if last.Path != w.path || last.Model != "m" || last.Prompt != "[[http 429]]" || len(last.Tools) != 1 || last.Side {
				t.Errorf("recorded %+v", last)
			}
		})
	}
}

// TestGone cuts a slow answer: the model sees that its client is gone.
func TestGone(t *testing.T) {
	s, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with the request
		_, _ = s.Await(t.Context(), func(Request) bool { return true })
		cancel()
	}()
	body := strings.NewReplacer("PROMPT", "[[slow]]", "AFTER", "").Replace(asking[1].request)
	if _, _, err := post(t, ctx, s.URL+asking[1].path, body); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := s.Await(t.Context(), func(r Request) bool { return r.Gone }); err != nil {
		t.Error(err)
	}
}

func TestMarker(t *testing.T) {
	for _, c := range []struct{ text, word, arg string }{
		{"[[text]] hello", "text", ""},
		{"first [[text]] then [[shell ls -l]]", "shell", "ls -l"},
		{"[[http 429]]", "http", "429"},
		{"[text]", "", ""},
	} {
		if word, arg, _ := marker(c.text); word != c.word || arg != c.arg {
			t.Errorf("%q: %q %q", c.text, word, arg)
		}
	}
}
