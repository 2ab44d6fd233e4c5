package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

func names(fs *flag.FlagSet) []string {
	var list []string
	fs.VisitAll(func(f *flag.Flag) { list = append(list, f.Name) })
	return list
}

// steady replaces what differs from run to run.
func steady(s string) string {
	for _, r := range []struct{ from, to string }{
		{`"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"`, `"time":"T"`},
		{`"pid":\d+`, `"pid":1`},
		{`pid \d+`, `pid 1`},
		{`"tool_duration_ms":\d+`, `"tool_duration_ms":1`},
		{`\([0-9.]+(s|ms|µs)`, `(1s`},
	} {
		s = regexp.MustCompile(r.from).ReplaceAllString(s, r.to)
	}
	return s
}

// twoTurns is a session whose second turn fails.
func twoTurns(t *testing.T) []string {
	return scenarioWith(t, `{"loadSession":true}`,
		prompted,
		chunk("Hello, "),
		chunk("<world>.\\nSecond line"),
		update(`"sessionUpdate":"tool_call","toolCallId":"t1","kind":"execute","title":"ls"`),
		update(`"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"failed","title":"ls -la"`),
		update(`"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"x"}`),
		update(`"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"y"}`),
		`{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s-1","toolCall":{"toolCallId":"t2"},"options":[{"optionId":"no","name":"No","kind":"reject_once"}]}}`,
		`{"expect_reply": 7}`,
		endTurn,
		prompted,
		`{"jsonrpc":"2.0","id":${id:session/prompt},"result":{"stopReason":"refusal"}}`,
		prompted,
		chunk("Third."),
		endTurn,
		atEOF,
	)
}

func TestJSON(t *testing.T) {
	t.Parallel()
	r := acpRun(t, "", with([]string{"run", "-json", "-prompt", "one", "-prompt", "two", "-prompt", "three"}, twoTurns(t))...)
	want := strings.TrimPrefix(`
{"type":"session_started","time":"T","session_id":"s-1","pid":1}
{"type":"notification","time":"T","session_id":"s-1","pid":1,"message":"this session started with a declared capability gap in: token counts"}
{"type":"notification","time":"T","session_id":"s-1","pid":1,"text":"Hello, "}
{"type":"notification","time":"T","session_id":"s-1","pid":1,"text":"<world>.\nSecond line"}
{"type":"notification","time":"T","session_id":"s-1","pid":1,"message":"Hello, <world>.\nSecond line"}
{"type":"tool_result","time":"T","session_id":"s-1","pid":1,"message":"ls -la","tool_name":"execute","tool_duration_ms":1,"tool_error":true}
{"type":"other_message","time":"T","session_id":"s-1","pid":1,"message":"reasoning block"}
{"type":"other_message","time":"T","session_id":"s-1","pid":1,"message":"reasoning block"}
{"type":"notification","time":"T","session_id":"s-1","pid":1,"message":"refused a permission request because this run is unattended and no one can approve it"}
{"type":"turn_completed","time":"T","session_id":"s-1","pid":1}
{"type":"turn_result","turn":1,"session_id":"s-1","exit_reason":"turn_completed","stop_reason":"end_turn","error":null,"usage":{"input_tokens":0,"output_tokens":0,"total_tokens":0,"cache_read_tokens":0},"measured":false,"unaccounted":true,"refused":1}
{"type":"session_started","time":"T","session_id":"s-1","pid":1}
{"type":"turn_failed","time":"T","session_id":"s-1","pid":1,"message":"MESSAGE"}
{"type":"turn_result","turn":2,"session_id":"s-1","exit_reason":"turn_failed","stop_reason":"refusal","error":{"kind":"turn_refused","message":"MESSAGE","retryable":false},"usage":{"input_tokens":0,"output_tokens":0,"total_tokens":0,"cache_read_tokens":0},"measured":false,"unaccounted":false,"refused":0}
{"type":"result","session_id":"s-1","turns":2,"error":{"kind":"turn_refused","message":"MESSAGE","retryable":false},"agent":{"name":"scripted","version":"1.2"},"resumed":false,"capabilities":{"tool_servers":"delivered","token_counts":"gap","session_continuation":"delivered","agent_version":"delivered"}}
`, "\n")
	got := steady(r.stdout)
	if m := regexp.MustCompile(`"turn_failed","time":"T","session_id":"s-1","pid":1,"message":("[^"]+")`).FindStringSubmatch(got); m != nil {
		got = strings.ReplaceAll(got, m[1], `"MESSAGE"`)
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if r.status != 1 || r.stderr != "" {
		t.Errorf("status %d, stderr %q", r.status, r.stderr)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	r := acpRun(t, "", with([]string{"run", "-keep-going", "-prompt", "one", "-prompt", "two", "-prompt", "three\nlines"}, twoTurns(t))...)
	want := strings.TrimPrefix(`
session s-1, scripted 1.2, pid 1
turn 1 of 3: one
note: this session started with a declared capability gap in: token counts
Hello, <world>.
Second line
* execute: ls -la (failed, 1s)
- reasoning block
note: refused a permission request because this run is unattended and no one can approve it
turn 1 completed (1s, 10 events, 1 refused)
turn 2 of 3: two
turn 3 of 3: three ...
Third.
turn 3 completed (1s, 4 events)
`, "\n")
	got := regexp.MustCompile(`failed, [0-9.]+(s|ms)`).ReplaceAllString(steady(r.stdout), "failed, 1s")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if r.status != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "acp run: turn 2: agent: turn_refused") {
		t.Errorf("status %d, stderr %q", r.status, r.stderr)
	}
	if strings.Contains(r.stdout, "\x1b") {
		t.Error("a control sequence where there is no terminal")
	}
}

func TestEmbeddedRuntime(t *testing.T) {
	t.Parallel()
	r := acpRun(t, "", "run", "hello")
	if r.status != 0 || r.stderr != "" || !strings.Contains(r.stdout, "hello") || !strings.Contains(r.stdout, "turn 1 completed") {
		t.Errorf("status %d, stdout %q, stderr %q", r.status, r.stdout, r.stderr)
	}
}

// TestPrompts looks at what reaches the runtime.
func TestPrompts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        []string
	}{
		{"a word", "", []string{"one"}, []string{"one"}},
		{"flags behind it", "", []string{"one", "-keep-going"}, []string{"one"}},
		{"repeated, with a word", "", []string{"-prompt", "a", "b", "-prompt", "c"}, []string{"a", "b", "c"}},
		{"standard input", "x\ny\n", nil, []string{"x\ny"}},
		{"a dash", "x\r\n", []string{"-"}, []string{"x"}},
		{"a dash among others", "x", []string{"-prompt", "a", "-prompt", "-"}, []string{"a", "x"}},
		{"not read without need", "x", []string{"a"}, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			record := filepath.Join(t.TempDir(), "record")
			var steps []string
			for range c.want {
				steps = append(steps, prompted, endTurn)
			}
			args := append([]string{"run", "-record", record}, c.args...)
			r := acpRun(t, c.stdin, with(args, scenario(t, append(steps, atEOF)...))...)
			if r.status != 0 {
				t.Fatalf("status %d, stderr %q", r.status, r.stderr)
			}
			if got := sentPrompts(t, record); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
				t.Errorf("sent %q, want %q", got, c.want)
			}
		})
	}
}

func sentPrompts(t *testing.T, record string) []string {
	t.Helper()
	b, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(b)) {
		var e struct{ Dir, Line string }
		var m struct {
			Method string
			Params struct{ Prompt []struct{ Text string } }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Dir == "send" && json.Unmarshal([]byte(e.Line), &m) == nil && m.Method == "session/prompt" {
			list = append(list, m.Params.Prompt[0].Text)
		}
	}
	return list
}

func TestRecordIsPrivate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("its files have no such permissions")
	}
	record := filepath.Join(t.TempDir(), "record")
	if err := os.WriteFile(record, []byte("old"), 0o644); err != nil { // #nosec G306 -- that is the point
		t.Fatal(err)
	}
	if r := acpRun(t, "", "run", "-record", record, "hello"); r.status != 0 {
		t.Fatalf("status %d, stderr %q", r.status, r.stderr)
	}
	fi, err := os.Stat(record)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	sentPrompts(t, record) // every line is JSON
}

// TestRecordFails: a transcript that cannot be written fails the run.
func TestRecordFails(t *testing.T) {
	t.Parallel()
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skip(err)
	}
	r := acpRun(t, "", "run", "-record", full, "hello")
	if r.status != 1 || !strings.Contains(r.stderr, "acp run: the transcript could not be written\n") {
		t.Errorf("status %d, stderr %q", r.status, r.stderr)
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	r := acpRun(t, "", "run", "-log-level", "info", "hello")
	if r.status != 0 || !strings.Contains(r.stderr, "agent implementation") {
		t.Errorf("status %d, stderr %q", r.status, r.stderr)
	}
	file := filepath.Join(t.TempDir(), "log")
	for range 2 {
		r = acpRun(t, "", "run", "-log-level", "info", "-log-file", file, "hello")
		if r.status != 0 || r.stderr != "" {
			t.Errorf("status %d, stderr %q", r.status, r.stderr)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil || strings.Count(string(b), "agent implementation") != 2 {
		t.Errorf("%v, %q", err, b)
	}
}

func TestKeepGoing(t *testing.T) {
	t.Parallel()
	dies := []string{prompted, endTurn, prompted, `{"exit": 3}`}
	for _, c := range []struct {
		name     string
		steps    []string
		flags    string
		turns    int
		kind     string
		exitCode int
	}{
		{"stops at a failed turn", []string{prompted, `{"jsonrpc":"2.0","id":${id:session/prompt},"error":{"code":1,"message":"no"}}`, prompted, endTurn, atEOF}, "", 1, "response_error", 1},
		{"goes on", []string{prompted, `{"jsonrpc":"2.0","id":${id:session/prompt},"error":{"code":1,"message":"no"}}`, prompted, endTurn, atEOF}, "-keep-going", 2, "response_error", 1},
		{"not behind a lost session", dies, "-keep-going", 2, "port_exit", 1},
		{"lost between turns", []string{prompted, endTurn, `{"exit": 0}`}, "", 2, "port_exit", 1},
		{"an exit behind the last turn is no error", []string{prompted, endTurn, prompted, endTurn, `{"exit": 0}`}, "", 2, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", "-json", "-prompt", "a", "-prompt", "b"}, strings.Fields(c.flags)...)
			r := acpRun(t, "", with(args, scenario(t, c.steps...))...)
			l := lastLine(t, r.stdout)
			if strings.Contains(r.stdout, `"exit_reason":""`) || strings.Contains(r.stdout, `"session_id":""`) {
				t.Errorf("a turn without a reason or a session: %s", r.stdout)
			}
			kind := ""
			if l.Error != nil {
				kind = string(l.Error.Kind)
			}
			if r.status != c.exitCode || l.Turns != c.turns || kind != c.kind {
				t.Errorf("status %d, %d turns, kind %q\n%s", r.status, l.Turns, kind, r.stdout)
			}
		})
	}
}

func lastLine(t *testing.T, stdout string) resultLine {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	var l resultLine
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &l); err != nil || l.Type != "result" {
		t.Fatalf("%v, last line of %q", err, stdout)
	}
	return l
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	cancelled := []string{`{"expect": "session/cancel"}`,
		`{"jsonrpc":"2.0","id":${id:session/prompt},"result":{"stopReason":"cancelled"}}`, atEOF}
	lively := []string{prompted, `{"send_seq": {"n": 100000, "gap_ms": 5, "line": ` + quoted(chunk("x")) + `}}`}
	for _, c := range []struct {
		name, flag, want string
		steps            []string
	}{
		{"turn", "-turn-timeout=300ms", "the turn took longer than 300ms", append([]string{prompted}, cancelled...)},
		{"turn in spite of life", "-turn-timeout=300ms", "the turn took longer than 300ms", lively},
		{"stall", "-stall-timeout=300ms", "no sign of life for 300ms", append([]string{prompted}, cancelled...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := acpRun(t, "", with([]string{"run", "-json", "-read-timeout=1s", c.flag, "hello"}, scenario(t, c.steps...))...)
			l := lastLine(t, r.stdout)
			if r.status != 1 || l.Error == nil || l.Error.Kind != "turn_cancelled" || !strings.Contains(l.Error.Message, c.want) {
				t.Errorf("status %d\n%s", r.status, r.stdout)
			}
		})
	}
	t.Run("no stall while it lives", func(t *testing.T) {
		t.Parallel()
		steps := []string{prompted, `{"send_seq": {"n": 40, "gap_ms": 50, "line": ` + quoted(chunk("x")) + `}}`, endTurn, atEOF}
		start := time.Now()
		r := acpRun(t, "", with([]string{"run", "-json", "-stall-timeout=1500ms", "hello"}, scenario(t, steps...))...)
		if r.status != 0 || time.Since(start) < 1500*time.Millisecond {
			t.Errorf("status %d\n%s", r.status, r.stdout)
		}
	})
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // a string always does
	return string(b)
}

func TestWorkspaceThroughALink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Skip(err)
	}
	cmd := acpCommand(t, "run", "hello")
	cmd.Dir, cmd.Env = link, append(cmd.Env, "PWD="+link)
	if r := finish(t, cmd); r.status != 0 {
		t.Errorf("started in a linked directory: %q", r.stderr)
	}
	cmd = acpCommand(t, "run", "hello", "-cwd", "link")
	cmd.Dir = dir
	oneComplaint(t, finish(t, cmd), 1, "invalid_workspace_cwd")
}
