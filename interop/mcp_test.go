package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/sortie-ai/acp"
)

const (
	mcpTool   = "interop_echo"
	mcpLog    = "INTEROP_MCP_LOG"
	mcpSecret = "interop-mcp-s3cret"
)

// newMCPServer returns a server with one tool; called is told each call.
func newMCPServer(called func(text string)) *mcp.Server {
	type input struct {
		Text string `json:"text" jsonschema:"the text to echo"`
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "interop", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: mcpTool, Description: "Echoes a text."},
		func(_ context.Context, _ *mcp.CallToolRequest, in input) (*mcp.CallToolResult, any, error) {
			called(in.Text)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "echo of " + in.Text}}}, nil, nil
		})
	return s
}

// runMCPServer serves over standard input and output and writes each call,
// with the secret it was given, to a file.
func runMCPServer() {
	s := newMCPServer(func(text string) {
		f, err := os.OpenFile(os.Getenv(mcpLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, _ = fmt.Fprintln(f, text, os.Getenv("INTEROP_SECRET"))
			_ = f.Close()
		}
	})
	_ = s.Run(context.Background(), &mcp.StdioTransport{})
}

// TestMCP delivers a server of the official SDK to runtimes that offer its tool
// to the model at once.
func TestMCP(t *testing.T) {
	for _, rt := range Runtimes() {
		if !rt.MCP || *set == "ci" && !rt.CI {
			continue
		}
		t.Run(rt.Name, func(t *testing.T) {
			t.Parallel()
			for _, transport := range []string{"stdio", "http"} {
				for _, gated := range []bool{false, true} {
					name := transport
					if gated {
						name += "-gated"
					}
					t.Run(name, func(t *testing.T) {
						defer table.time(rt.Name, "mcp "+name, t)()
						deliver(t, rt, transport, gated)
					})
				}
			}
		})
	}
}

func deliver(t *testing.T, rt Runtime, transport string, gated bool) {
	b := newBench(t, rt)
	logName := filepath.Join(b.home, "mcp.log")
	server := map[string]any{}
	switch transport {
	case "stdio":
		server["command"] = testBinary(t)
		server["env"] = map[string]string{roleName: "mcp", mcpLog: logName, "INTEROP_SECRET": mcpSecret}
	case "http":
		h := newMCPHandler(t, logName)
		server["type"], server["url"], server["headers"] = "http", h.URL, map[string]string{"X-Interop": mcpSecret}
	}
	file, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"probe": server}})
	b.must(err)
	config := filepath.Join(b.home, "mcp.json")
	b.must(os.WriteFile(config, file, 0o600))
	posture := rt.Free
	if gated {
		posture = rt.Asks
		posture.Env = slices.Concat(posture.Env, rt.Trust)
	}
	r := b.start(posture, func(c *acp.Config) { c.MCPConfig = config })
	if !r.Info().ToolServers {
		t.Error("a server was withheld")
	}
	tn := r.done("[[mcp " + mcpTool + "]] please")
	r.stop(nil, b.rt.Facts.Escapes)
	calls, err := os.ReadFile(logName)
	const gate = "a tool delivered to this session cannot be called"
	if !gated {
		b.must(err)
		if string(calls) != "ping "+mcpSecret+"\n" {
			t.Errorf("the server was called: %q", calls)
		}
		if !b.learnt("echo of ping") {
			t.Errorf("the model did not learn what the tool said; it was offered %v", b.lastAsked().Tools)
		}
		if results := tn.of(acp.ToolResult); len(results) != 1 || results[0].ToolError {
			t.Errorf("tool results: %+v", results)
		}
	} else {
		if err == nil {
			t.Errorf("the server was called: %q", calls)
		}
		notices := slices.DeleteFunc(tn.of(acp.Notification), func(e acp.Event) bool { return !strings.HasPrefix(e.Message, gate) })
		if tn.Refused != 1 || len(notices) != 1 {
			t.Errorf("refused %d; notices of %q: %+v", tn.Refused, gate, notices)
		}
	}
	for _, l := range r.wire.lines() {
		if strings.Contains(l.Line, mcpSecret) {
			t.Errorf("the transcript holds a secret: %s %.300s", l.Dir, l.Line)
			break
		}
	}
}

// newMCPHandler serves over HTTP and logs as runMCPServer does.
func newMCPHandler(t *testing.T, logName string) *httptest.Server {
	t.Helper()
	var secret string
	server := newMCPServer(func(text string) {
		_ = os.WriteFile(logName, []byte(text+" "+secret+"\n"), 0o600)
	})
	handler := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		secret = r.Header.Get("X-Interop")
		return server
	}, nil)
	h := httptest.NewServer(handler)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h
}
