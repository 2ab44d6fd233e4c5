package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A protocol is one copy of the protocol's v1 schema.
type protocol struct {
	name     string
	defs     map[string]any
	compiled map[string]*jsonschema.Schema // by definition; the empty name is the client's message
	method   map[string]string             // of a request or notification of ours to its definition
}

// schemas holds the copies: the SDK's, with what is still unstable, and the
// stable one of another implementation.
type schemas struct{ sdk, stable *protocol }

func loadSchemas(t *testing.T) *schemas {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/coder/acp-go-sdk")
	dir, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return &schemas{
		sdk:    loadProtocol(t, filepath.Join(installed(t, "sdk"), "node_modules/@agentclientprotocol/sdk/schema/schema.json")),
		stable: loadProtocol(t, filepath.Join(strings.TrimSpace(string(dir)), "schema/schema.json")),
	}
}

func loadProtocol(t *testing.T, name string) *protocol {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &protocol{name: name, compiled: map[string]*jsonschema.Schema{}, method: map[string]string{}}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("acp.json", doc); err != nil {
		t.Fatal(err)
	}
	root := doc.(map[string]any)
	p.defs = root["$defs"].(map[string]any)
	for i, of := range root["anyOf"].([]any) {
		if of.(map[string]any)["title"] == "Client" {
			p.compiled[""] = c.MustCompile(fmt.Sprintf("acp.json#/anyOf/%d", i))
		}
	}
	for name, def := range p.defs {
		p.compiled[name] = c.MustCompile("acp.json#/$defs/" + name)
		d := def.(map[string]any)
		method, _ := d["x-method"].(string)
		if d["x-side"] == "agent" && !strings.HasSuffix(name, "Response") {
			p.method[method] = name
		}
	}
	return p
}

// check validates a raw value; an absent one is null.
func (p *protocol) check(def string, raw json.RawMessage) error {
	if raw == nil {
		raw = json.RawMessage("null")
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return p.compiled[def].Validate(v)
}

// checkSent validates every message that we sent.
func (s *schemas) checkSent(t *testing.T, w *transcript) {
	t.Helper()
	asked := map[string]string{} // the runtime's requests
	for _, l := range w.lines() {
		var m rpc
		if json.Unmarshal([]byte(l.Line), &m) != nil {
			continue
		}
		if l.Dir == "recv" && m.Method != "" {
			asked[string(m.ID)] = m.Method
		}
		if l.Dir != "send" {
			continue
		}
		if err := s.checkMessage(m, []byte(l.Line), asked); err != nil {
			t.Errorf("sent %.500s: %v", l.Line, err)
		}
	}
	if len(asked) == 0 && len(w.messages("send")) == 0 {
		t.Error("nothing was sent")
	}
}

func (s *schemas) checkMessage(m rpc, line []byte, asked map[string]string) error {
	if err := s.sdk.check("", line); err != nil {
		return err
	}
	if m.Method == "" {
		if m.Error != nil {
			return s.sdk.check("Error", m.Error)
		}
		if method := asked[string(m.ID)]; method != "session/request_permission" {
			return fmt.Errorf("a result for %q", method)
		}
		return s.both("RequestPermissionResponse", m.Result)
	}
	if strings.HasPrefix(m.Method, "_") { // the negative control
		return nil
	}
	def := s.sdk.method[m.Method]
	if def == "" {
		return fmt.Errorf("the schema has no method %s", m.Method)
	}
	return s.both(def, m.Params)
}

// both validates against each copy that has the definition.
func (s *schemas) both(def string, raw json.RawMessage) error {
	for _, p := range []*protocol{s.sdk, s.stable} {
		if p.compiled[def] == nil {
			continue
		}
		if err := p.check(def, raw); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}
