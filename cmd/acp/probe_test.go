package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// probeArgs is quick about runtimes that play dead.
func probeArgs(command []string, flags ...string) []string {
	args := append([]string{"probe", "-json", "-read-timeout", "2s", "-handshake-timeout", "10s", "-stop-grace", "2s"}, flags...)
	return append(args, command...)
}

func probed(t *testing.T, status int, args []string) report {
	t.Helper()
	r := acpRun(t, "", args...)
	var rep report
	if err := json.Unmarshal([]byte(r.stdout), &rep); err != nil {
		t.Fatalf("%v: stdout %q, stderr %q", err, r.stdout, r.stderr)
	}
	if r.status != status || rep.Fit != (status == 0) || (rep.Reason == "") != rep.Fit {
		t.Fatalf("status %d: %s", r.status, r.stdout)
	}
	return rep
}

func TestProbeFacts(t *testing.T) {
	t.Parallel()
	command := scenarioWith(t, `{"loadSession":true,"sessionCapabilities":{"close":{},"delete":null},"mcpCapabilities":{"http":true,"sse":1}}`, atEOF)
	r := probed(t, 0, probeArgs(command))
	if !r.Starts || r.HandshakeMS <= 0 || r.Agent != (agentLine{"scripted", "1.2"}) || string(r.Protocol) != "1" {
		t.Errorf("%+v", r)
	}
	if r.Routes != (routeReport{"session/load", true, false}) || r.MCP != (mcpReport{true, true, false}) {
		t.Errorf("%+v, %+v", r.Routes, r.MCP)
	}
	c := r.Capabilities
	if c.ToolServers.State != "delivered" || c.TokenCounts.State != "gap" || c.TokenCounts.Reason == "" ||
		c.SessionContinuation.State != "delivered" || c.AgentVersion.State != "delivered" {
		t.Errorf("%+v", c)
	}
	if r.Auth.Needed != "no" || len(r.Auth.Methods) != 0 || r.Turn != nil || r.Tokens.Measured != nil || r.Noise.Lines != 0 {
		t.Errorf("%+v", r)
	}
	if len(r.Endings) != len(waysToEnd) {
		t.Errorf("%+v", r.Endings)
	}
	for _, e := range r.Endings {
		if strings.HasPrefix(e.Exit, "not tried") || e.Exit == "still running" || len(e.Left) > 0 {
			t.Errorf("%+v", e)
		}
	}
}

func TestProbeGapsAndNoise(t *testing.T) {
	t.Parallel()
	r := probed(t, 0, probeArgs(play(t, []string{
		`{"send": "Welcome to \u001b[1magent"}`, `{"send": ""}`, `{"send": "{\"level\":\"info\"}"}`,
		`{"expect": "initialize"}`,
		`{"send": "{\"jsonrpc\":\"2.0\",\"id\":${id:initialize},\"result\":{\"protocolVersion\":1,\"authMethods\":[{\"id\":\"login\",\"name\":\"Log in\"}]}}"}`,
		`{"expect": "session/new"}`,
		`{"send": "{\"jsonrpc\":\"2.0\",\"id\":${id:session/new},\"result\":{\"sessionId\":\"s\"}}"}`,
		atEOF,
	})))
	c := r.Capabilities
	if c.SessionContinuation.State != "gap" || c.AgentVersion.State != "gap" || c.AgentVersion.Reason == "" {
		t.Errorf("%+v", c)
	}
	if r.Noise.Lines != 2 || r.Noise.First != "Welcome to ?[1magent" {
		t.Errorf("%+v", r.Noise)
	}
	if len(r.Auth.Methods) != 1 || r.Auth.Methods[0] != (authMethod{"login", "Log in"}) {
		t.Errorf("%+v", r.Auth)
	}
}

func TestProbeNotFit(t *testing.T) {
	t.Parallel()
	initialize := `{"expect": "initialize"}`
	for _, c := range []struct {
		name, want, auth string
		command          []string
	}{
		{"missing", "agent_not_found", "unknown", []string{"--", "/nonexistent"}},
		{"exits", "exit status 3", "unknown", play(t, []string{initialize, `{"exit": 3}`})},
		{"other version", "response_error", "unknown", play(t, []string{initialize,
			`{"send": "{\"jsonrpc\":\"2.0\",\"id\":${id:initialize},\"result\":{\"protocolVersion\":2}}"}`, atEOF})},
		{"login", "credential_unverified", "yes", play(t, []string{initialize,
			`{"send": "{\"jsonrpc\":\"2.0\",\"id\":${id:initialize},\"result\":{\"protocolVersion\":1,\"authMethods\":[{\"id\":\"login\"}]}}"}`,
			`{"expect": "session/new"}`,
			`{"send": "{\"jsonrpc\":\"2.0\",\"id\":${id:session/new},\"error\":{\"code\":-32000,\"message\":\"Authentication required\"}}"}`, atEOF})},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := probed(t, 1, probeArgs(c.command))
			if !strings.Contains(r.Reason, c.want) || strings.Contains(r.Reason, "\n") || r.Auth.Needed != c.auth {
				t.Errorf("auth %q, reason %q", r.Auth.Needed, r.Reason)
			}
		})
	}
}

func TestProbeTurn(t *testing.T) {
	t.Parallel()
	ask := `{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s-1","options":[{"optionId":"n","name":"n","kind":"reject_once"}]}}`
	r := probed(t, 0, probeArgs(scenario(t, prompted, ask, `{"expect_reply": 1}`, endTurn, atEOF), "-prompt", "hi"))
	if r.Turn == nil || r.Turn.ExitReason != "turn_completed" || r.Permissions != (permissionReport{1, 1}) || r.Tokens.Measured == nil {
		t.Errorf("%+v", r)
	}
	failed := `{"jsonrpc":"2.0","id":${id:session/prompt},"error":{"code":-32000,"message":"Authentication required"}}`
	r = probed(t, 1, probeArgs(scenario(t, prompted, failed, atEOF), "-prompt", "hi"))
	if r.Auth.Needed != "yes" || r.Turn == nil || r.Turn.Error == nil {
		t.Errorf("%+v", r)
	}
}

// TestProbeText: every row of the report, and the verdict last.
func TestProbeText(t *testing.T) {
	t.Parallel()
	r := acpRun(t, "", "probe", "--", self(t), embedded)
	for _, label := range []string{"starts", "name, version", "protocol version", "tool servers", "token counts",
		"session continuation", "agent version", "routes", "MCP transports", "authentication", "stdout noise",
		"permissions", "tokens", "after end of input", "after SIGTERM", "after kill", "after kill of first alone"} {
		if !strings.Contains("\n"+r.stdout, "\n"+label+"  ") {
			t.Errorf("no row %q in\n%s", label, r.stdout)
		}
	}
	if r.status != 0 || !strings.HasSuffix(r.stdout, "\nverdict                     fit\n") {
		t.Errorf("status %d\n%s", r.status, r.stdout)
	}
	r = acpRun(t, "", "probe", "--", "/nonexistent")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if last := lines[len(lines)-1]; r.status != 1 || !strings.HasPrefix(last, "verdict                     not fit: agent: agent_not_found") {
		t.Errorf("status %d, last line %q", r.status, last)
	}
}
