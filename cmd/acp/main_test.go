package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asCommand, in the environment, makes the test binary the command itself, and
// with it the embedded runtime that the command starts.
const asCommand = "ACP_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// command returns the command with these arguments, not started, in a
// directory of its own.
func acpCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), self(t), args...)
	// Under the race detector every exit would take a second.
	cmd.Env = append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Dir = t.TempDir()
	return cmd
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

type ran struct {
	stdout, stderr string
	status         int
}

// acpRun runs the command to its end, with stdin as its standard input.
func acpRun(t *testing.T, stdin string, args ...string) ran {
	t.Helper()
	cmd := acpCommand(t, args...)
	cmd.Stdin = strings.NewReader(stdin)
	return finish(t, cmd)
}

func finish(t *testing.T, cmd *exec.Cmd) ran {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// scenario writes a script for the embedded runtime and returns the command
// that plays it. It begins with a plain handshake.
func scenario(t *testing.T, steps ...string) []string {
	t.Helper()
	return scenarioWith(t, `{}`, steps...)
}

// scenarioWith is scenario with these agentCapabilities.
func scenarioWith(t *testing.T, capabilities string, steps ...string) []string {
	t.Helper()
	return play(t, handshake(t, capabilities, steps...))
}

// handshake returns the steps of a handshake and what follows it, where a line
// of the protocol stands for itself.
func handshake(t *testing.T, capabilities string, steps ...string) []string {
	t.Helper()
	quote := func(line string) string {
		b, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		return `{"send": ` + string(b) + `}`
	}
	list := []string{
		`{"expect": "initialize"}`,
		quote(`{"jsonrpc":"2.0","id":${id:initialize},"result":{"protocolVersion":1,"agentCapabilities":` + capabilities + `,"agentInfo":{"name":"scripted","version":"1.2"}}}`),
		`{"expect": "session/new"}`,
		quote(`{"jsonrpc":"2.0","id":${id:session/new},"result":{"sessionId":"s-1"}}`),
	}
	for _, step := range steps {
		if strings.HasPrefix(step, `{"jsonrpc"`) {
			step = quote(step)
		}
		list = append(list, step)
	}
	return list
}

// play returns the command that plays these steps alone.
func play(t *testing.T, steps []string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scenario.json")
	text := `{"id": "test", "script": [` + strings.Join(steps, ",\n") + `]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--", self(t), embedded, "-scenario", file}
}

const (
	prompted = `{"expect": "session/prompt"}`
	endTurn  = `{"jsonrpc":"2.0","id":${id:session/prompt},"result":{"stopReason":"end_turn"}}`
	atEOF    = `{"wait_stdin_eof": true}`
)

// update is a session/update of the scripted session.
func update(fields string) string {
	return `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s-1","update":{` + fields + `}}}`
}

func chunk(text string) string {
	return update(`"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + text + `"}`)
}

func with(args []string, command []string) []string {
	return append(args, command...)
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		args  string // fields; ~ is an empty argument
		stdin string
		want  string // in the line
	}{
		{args: "", want: "say what to do"},
		{args: "dance", want: `there is no command "dance"`},
		{args: "version now", want: "takes no arguments (try acp -help)"},
		{args: "help dance", want: "help for run and for probe (try acp -help)"},
		{args: "run -dance hello", want: "not defined: -dance"},
		{args: "run hello -dance", want: "not defined: -dance"},
		{args: "run -prompt", want: "needs an argument: -prompt"},
		{args: "run hello there", want: `"there" is a second prompt`},
		{args: "run hello --", want: "no command follows --"},
		{args: "run -prompt hello -prompt - -", want: "one turn only"},
		{args: "run ~", want: "the prompt is empty"},
		{args: "run -prompt ~", want: "the prompt is empty"},
		{args: "run", want: "standard input is empty"},
		{args: "run -", stdin: " \n", want: "standard input is empty"},
		{args: "run -ssh host hello", want: "-ssh needs the runtime's command"},
		{args: "run -ssh-pass-env A hello", want: "need -ssh"},
		{args: "run -ssh-strict yes hello", want: "need -ssh"},
		{args: "run -ssh h -ssh-strict perhaps hello -- x", want: `not "perhaps"`},
		{args: "run -read-timeout soon hello", want: `invalid value "soon"`},
		{args: "run -turn-timeout -5s hello", want: `-turn-timeout cannot be "-5s"`},
		{args: "run -stall-timeout -5s hello", want: `-stall-timeout cannot be "-5s"`},
		{args: "run -max-line -1 hello", want: `-max-line cannot be "-1"`},
		{args: "run -max-line many hello", want: `invalid value "many"`},
		{args: "run -json=perhaps hello", want: `invalid boolean value "perhaps"`},
		{args: "run -resume ~ hello", want: `-resume cannot be ""`},
		{args: "run -mcp-config ~ hello", want: `-mcp-config cannot be ""`},
		{args: "run -record ~ hello", want: `-record cannot be ""`},
		{args: "run -record " + dir + " hello", want: "-record: open " + dir + ": is a directory"},
		{args: "run -log-file " + dir + " hello", want: "-log-file: open " + dir + ": is a directory"},
		{args: "run -log-level loud hello", want: `invalid value "loud"`},
		{args: "probe", want: "write the runtime's command after --"},
		{args: "probe gemini", want: `unexpected "gemini"`},
		{args: "probe -keep-going -- x", want: "not defined: -keep-going"},
		{args: "probe -prompt a -prompt b -- x", want: "one prompt is enough"},
		{args: "probe -prompt ~ -- x", want: "the prompt is empty"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(c.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "~", "")
			}
			r := acpRun(t, c.stdin, args...)
			oneComplaint(t, r, 2, c.want)
		})
	}
}

// oneComplaint checks for exactly one line on standard error, and the status.
func oneComplaint(t *testing.T, r ran, status int, want string) {
	t.Helper()
	if r.status != status || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, want) {
		t.Errorf("status %d, stdout %q, stderr %q; want status %d and one line with %q", r.status, r.stdout, r.stderr, status, want)
	}
}

func TestStartFailure(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"missing binary", "agent_not_found", []string{"--", "/nonexistent/agent"}},
		{"workspace missing", "invalid_workspace_cwd", []string{"-cwd", "/nonexistent"}},
		{"workspace a file", "invalid_workspace_cwd", []string{"-cwd", file}},
		{"workspace empty", "invalid_workspace_cwd", []string{"-cwd", ""}},
		{"MCP file missing", "response_error", []string{"-mcp-config", "/nonexistent"}},
		{"bad host", "agent_not_found", []string{"-ssh", "a b", "--", "agent"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			oneComplaint(t, acpRun(t, "", with([]string{"run", "hello"}, c.args)...), 1, c.want)
			r := acpRun(t, "", with([]string{"run", "-json", "hello"}, c.args)...)
			var l resultLine
			if err := json.Unmarshal([]byte(r.stdout), &l); err != nil {
				t.Fatalf("%v: %q", err, r.stdout)
			}
			if r.status != 1 || l.Type != "result" || l.Error == nil || string(l.Error.Kind) != c.want || l.Turns != 0 {
				t.Errorf("status %d, %s", r.status, r.stdout)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"help":        "acp probe [flags] -- COMMAND",
		"-h":          "acp run [flags] [PROMPT]",
		"help run":    "-stall-timeout DURATION",
		"help probe":  "Exit status: 0 fit",
		"run -h":      "-ssh-pass-env NAME",
		"probe -help": "-prompt TEXT",
		"version":     "(revision ",
		"version -h":  "acp probe [flags] -- COMMAND",
		"help -help":  "acp probe [flags] -- COMMAND",
	} {
		r := acpRun(t, "", strings.Fields(args)...)
		if r.status != 0 || r.stderr != "" || !strings.Contains(r.stdout, want) {
			t.Errorf("acp %s: status %d, %q, stderr %q", args, r.status, r.stdout, r.stderr)
		}
	}
}

// TestTurnTimeoutDefault: a probe's turn has a bound, a run's is the caller's.
func TestTurnTimeoutDefault(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		parse func([]string) (*settings, error)
		args  []string
		want  time.Duration
	}{
		{parseProbe, []string{"--", "x"}, 10 * time.Minute},
		{parseProbe, []string{"-turn-timeout", "1s", "--", "x"}, time.Second},
		{parseRun, []string{"hello", "--", "x"}, 0},
	} {
		s, err := c.parse(c.args)
		if err != nil || s.turnTimeout != c.want {
			t.Errorf("%q: %+v, %v", c.args, s, err)
		}
	}
}

// TestHelpNamesEveryFlag compares the help texts, and the page in docs, with
// the flags.
func TestHelpNamesEveryFlag(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "acp.1.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		help  string
		flags []string
	}{
		{helpRun(), names(runFlags(&settings{}))},
		{helpProbe(), names(probeFlags(&settings{}))},
	} {
		for _, name := range c.flags {
			if !strings.Contains(c.help, "\n  -"+name) {
				t.Errorf("the help lacks -%s", name)
			}
			if !strings.Contains(string(page), "`-"+name) {
				t.Errorf("docs/acp.1.md lacks -%s", name)
			}
		}
	}
}
