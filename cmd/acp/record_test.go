package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replayed runs the prompts against a recorded session.
func replayed(t *testing.T, record string, args ...string) ran {
	t.Helper()
	return acpRun(t, "", append(args, "--", self(t), embedded, "-replay", record)...)
}

// TestRecordReplays: a recorded session, played back, gives the same events and
// the same outcome; and so does the recording of the playback.
func TestRecordReplays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prompts []string
		status  int
		kind    string // in the last line
	}{
		{"plain", []string{"hello", "long 40"}, 0, ""},
		{"a permission", []string{"permission please", "hello"}, 0, ""},
		{"a question", []string{"hello", "ask me"}, 1, "turn_input_required"},
		{"a refusal", []string{"refuse", "hello"}, 1, "turn_refused"},
		{"an error", []string{"fail", "hello"}, 1, "response_error"},
		{"a crash", []string{"hello", "crash"}, 1, "port_exit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"run", "-json", "-keep-going", "-read-timeout", "10s", "-stall-timeout", "10s"} // far more than a replay takes
			for _, p := range c.prompts {
				args = append(args, "-prompt", p)
			}
			dir := t.TempDir()
			first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
			want := acpRun(t, "", append(args, "-record", first)...)
			if l := lastLine(t, want.stdout); want.status != c.status || c.kind != "" && (l.Error == nil || string(l.Error.Kind) != c.kind) {
				t.Fatalf("status %d, %s, stderr %q", want.status, want.stdout, want.stderr)
			}
			for _, got := range []ran{replayed(t, first, append(args, "-record", second)...), replayed(t, second, args...)} {
				if steady(got.stdout) != steady(want.stdout) || got.status != want.status {
					t.Errorf("status %d, stderr %q, got\n%s\nwant\n%s", got.status, got.stderr, steady(got.stdout), steady(want.stdout))
				}
			}
		})
	}
}

// TestRecordHidesSecrets: what the MCP configuration names never gets into the
// file, also when the prompt and the runtime say it, nor does the environment.
// What is left can be played back.
func TestRecordHidesSecrets(t *testing.T) {
	t.Parallel()
	const inEnv, inHeader, inEnvironment = "walrus-in-env", "walrus-<in>-header", "walrus-in-environment"
	dir := t.TempDir()
	config, record := filepath.Join(dir, "mcp.json"), filepath.Join(dir, "record")
	servers := `{"mcpServers": {"a": {"command": "sh", "env": {"TOKEN": ` + quoted(inEnv) + `}},
		"b": {"type": "http", "url": "http://127.0.0.1:1/", "headers": {"Authorization": ` + quoted(inHeader) + `}}}}`
	if err := os.WriteFile(config, []byte(servers), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := acpCommand(t, "run", "-record", record, "-mcp-config", config, "say "+inEnv+" and "+inHeader)
	cmd.Env = append(cmd.Env, "SOME_KEY="+inEnvironment)
	if r := finish(t, cmd); r.status != 0 || !strings.Contains(r.stdout, inEnv) {
		t.Fatalf("status %d, %q, stderr %q", r.status, r.stdout, r.stderr)
	}
	b, err := os.ReadFile(record)
	if err != nil || strings.Contains(string(b), "walrus") || strings.Count(string(b), "[redacted]") < 4 {
		t.Errorf("%v, %s", err, b)
	}
	if r := replayed(t, record, "run", "go on"); r.status != 0 || !strings.Contains(r.stdout, "[redacted]") {
		t.Errorf("status %d, %q, stderr %q", r.status, r.stdout, r.stderr)
	}
}

// TestReplayOfRealRuntimes plays what real runtimes once said to the command.
func TestReplayOfRealRuntimes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"sdk-refuse":    `"refused":1`,
		"copilot-error": `"text":"Error: 400 pretend error 400"`,
		"claude-cancel": `"kind":"turn_cancelled"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, err := filepath.Abs(filepath.Join("..", "..", "testdata", "transcripts", name+".jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			cancelled := strings.Contains(want, "cancelled")
			args := []string{"run", "-json", "go on"}
			if cancelled {
				args = append(args, "-stall-timeout", "1s")
			}
			r := replayed(t, file, args...)
			if (r.status == 1) != cancelled || !strings.Contains(r.stdout, want) {
				t.Errorf("status %d, %s, stderr %q", r.status, r.stdout, r.stderr)
			}
		})
	}
}
