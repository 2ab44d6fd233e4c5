package script_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sortie-ai/acp/fakeagent/script"
)

// TestMain lets the test binary be the fake runtime, for the steps that need a
// process of their own.
func TestMain(m *testing.M) {
	if os.Getenv("FAKEAGENT_PROCESS") != "" {
		os.Exit(script.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// talk is a conversation: a line that begins with > is written to the runtime,
// one that begins with < is what it must write next, a lone . ends its input.
func talk(t *testing.T, in io.WriteCloser, out io.Reader, lines string) {
	t.Helper()
	r := bufio.NewReader(out)
	for line := range strings.Lines(lines) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "":
		case line == ".":
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
		case line[0] == '>':
			if _, err := io.WriteString(in, line[1:]+"\n"); err != nil {
				t.Fatal(err)
			}
		default:
			got, err := r.ReadString('\n')
			if got != line[1:]+"\n" {
				t.Fatalf("the runtime wrote %q, %v; want %q", got, err, line[1:])
			}
		}
	}
}

// run plays one conversation with a runtime in this process.
func run(t *testing.T, conversation string, args ...string) (status int, stderr string) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	var errs strings.Builder
	ended := make(chan int)
	go func() {
		status := script.Main(args, inR, outW, nopCloser{&errs})
		_ = outW.Close()
		ended <- status
	}()
	talk(t, inW, outR, conversation)
	_, _ = io.Copy(io.Discard, outR)
	status = <-ended
	_ = inW.Close()
	return status, errs.String()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func scenario(t *testing.T, steps string) string {
	t.Helper()
	return file(t, `{"id":"T","title":"a test","script":[`+steps+`]}`)
}

func TestSteps(t *testing.T) {
	tests := []struct {
		name         string
		steps        string
		conversation string
		status       int
		stderr       string // all of it, without the newline
	}{
		{"nothing", ``, `.`, 0, ""},
		{"id", `{"expect":"a"},{"send":"${id:a} ${idtext:a}"}`, ">{\"id\":\"x\",\"method\":\"a\"}\n<\"x\" x", 0, ""},
		{"id by name", `{"expect":"a","as":"n"},{"send":"${id:n}"}`, ">{\"id\":1e400,\"method\":\"a\"}\n<1e400", 0, ""},
		{"unbound", `{"send":"${id:n}"}`, `.`, 9, `scenario T step 1: no request is bound to "n"`},
		{"other messages are kept", `{"expect":"b"},{"expect":"a"},{"send":"ok"}`,
			">{\"method\":\"a\"}\n>{\"method\":\"b\"}\n<ok", 0, ""},
		{"no message", `{"expect":"a","within_ms":20}`, ``, 9, `scenario T step 1: no a`},
		{"gone", `{"expect":"a"}`, `.`, 8, ""},
		{"no JSON", `{"expect":"a"}`, `>hello`, 9, `scenario T step 1: the client wrote a line that is no message: "hello"`},
		{"required", `{"expect":"a","require":{"params.n":{"type":"integer","equals":1,"min":1},` +
			`"params.l":{"type":"array","min":1},"params.p":{"absolute":true},"params.l.0.t":{"type":"string","min":2}}}`,
			`>{"method":"a","params":{"n":1,"l":[{"t":"xy"}],"p":"` + root + `"}}`, 0, ""},
		{"requirement missed", `{"expect":"a","require":{"params.n":{"type":"integer"}}}`,
			">{\"id\":1,\"method\":\"a\",\"params\":{\"n\":1.5}}\n" +
				`<{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"params.n of a is of type number, not integer"}}`,
			9, `scenario T step 1: params.n of a is of type number, not integer`},
		{"value missed", `{"expect":"a","require":{"n":{"equals":2}}}`, `>{"method":"a","n":1}`, 9, `scenario T step 1: n of a is 1, not 2`},
		{"length missed", `{"expect":"a","require":{"l":{"min":1}}}`, `>{"method":"a","l":[]}`, 9, `scenario T step 1: l of a is below 1`},
		{"relative", `{"expect":"a","require":{"p":{"absolute":true}}}`, `>{"method":"a","p":"x"}`, 9, `scenario T step 1: p of a is no absolute path: "x"`},
		{"reply", `{"expect_reply":"r","want":{"result.outcome":"yes"}}`, `>{"id":"r","result":{"outcome":"yes"}}`, 0, ""},
		{"reply to our id", `{"expect":"a"},{"expect_reply":"${id:a}"}`, ">{\"id\":7,\"method\":\"a\"}\n>{\"id\":7,\"result\":1}", 0, ""},
		{"reply with another id", `{"expect_reply":1,"within_ms":20}`, `>{"id":1.0,"result":{}}`, 9, `scenario T step 1: no reply to 1`},
		{"reply missed", `{"expect_reply":1,"want":{"error.code":-32601}}`, `>{"id":1,"result":{}}`, 9,
			`scenario T step 1: reply to 1: error.code is <nil>, not -32601`},
		{"replies", `{"expect_replies":2,"want":{"result":1}}`, ">{\"id\":1,\"result\":1}\n>{\"id\":2,\"result\":1}", 0, ""},
		{"too few replies", `{"expect":"a"},{"expect_replies":2,"within_ms":20}`, ">{\"id\":1,\"result\":1}\n>{\"method\":\"a\"}", 9, `scenario T step 2: 1 replies, not 2`},
		{"none", `{"expect_none_ms":20}`, ``, 0, ""},
		{"line end and mark", `{"send":"a","eol":"\r\n","bom":true}`, "<\ufeffa\r", 0, ""},
		{"block", `{"send_block":["a","b"]}`, "<a\n<b", 0, ""},
		{"bytes", `{"send_b64":"YQo="},{"send_chunks_b64":["Yg==","Ywo="],"gap_ms":1}`, "<a\n<bc", 0, ""},
		{"fill", `{"send_fill":{"prefix":"<","byte":"x","count":5,"suffix":">"}}`, "<<xxxxx>", 0, ""},
		{"sequence", `{"send_seq":{"n":3,"line":"${i};"}}`, "<0;\n<1;\n<2;", 0, ""},
		{"stderr", `{"stderr":"a"},{"stderr_fill":3,"one_line":true}`, ``, 0, "aeee"},
		{"exit", `{"sleep_ms":1},{"exit":5},{"send":"never"}`, ``, 5, ""},
		{"end of input", `{"wait_stdin_eof":true},{"send":"x"}`, ".\n<x", 0, ""},
		{"closed", `{"close_stdout":true},{"close_stderr":true},{"close_stdin":true},{"expect":"a"}`, ``, 8, ""},
		{"rules", `{"answer_all":true,"until":"x"},{"expect":"x"},{"send":"x"}`,
			">{\"id\":1,\"method\":\"session/new\"}\n" + `<{"jsonrpc":"2.0","id":1,"result":{"sessionId":"fake-1"}}` +
				"\n>{\"method\":\"x\"}\n<x", 0, ""},
		{"slow reading", `{"read_slow":1},{"expect":"a"}`, `>{"method":"a"}`, 0, ""},
		{"unknown signal", `{"ignore":["SIGNAL"]}`, ``, 9, `scenario T step 1: unknown signal "SIGNAL"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			status, stderr := run(t, test.conversation, "-scenario", scenario(t, test.steps))
			if status != test.status || strings.TrimSuffix(stderr, "\n") != test.stderr {
				t.Errorf("status %d, stderr %q; want %d, %q", status, stderr, test.status, test.stderr)
			}
		})
	}
}

// A client that writes while nothing may come fails the scenario.
func TestExpectNone(t *testing.T) {
	inR, inW := io.Pipe()
	var errs strings.Builder
	go func() {
		for {
			if _, err := io.WriteString(inW, "{}\n"); err != nil {
				return
			}
		}
	}()
	status := script.Main([]string{"-scenario", scenario(t, `{"expect_none_ms":50}`)}, inR, nopCloser{io.Discard}, nopCloser{&errs})
	if err := inR.Close(); err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(errs.String(), "scenario T step 1: the client wrote ") || status != 9 {
		t.Errorf("status %d, stderr %q", status, errs.String())
	}
}

const root = string(filepath.Separator)

func TestBadFiles(t *testing.T) {
	tests := []struct{ name, file, text string }{
		{"no JSON", file(t, `{`), "unexpected end"},
		{"unknown key", scenario(t, `{"send":"x","color":1}`), `unknown field "color"`},
		{"two verbs", scenario(t, `{"send":"x","exit":1}`), "more than one verb"},
		{"no verb", scenario(t, `{"as":"x"}`), "no verb"},
		{"missing", filepath.Join(t.TempDir(), "none"), "none"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			status, stderr := run(t, "", "-scenario", test.file)
			if status != 2 || !strings.Contains(stderr, test.text) {
				t.Errorf("status %d, stderr %q", status, stderr)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-nosuch"}, {"argument"}, {"-scenario", "a", "-replay", "b"}} {
		if status, stderr := run(t, "", args...); status != 2 || stderr == "" {
			t.Errorf("%q: status %d, stderr %q", args, status, stderr)
		}
	}
}

// The report names every step and the end, so that a test sees a failure that
// came too late for the client.
func TestReport(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report")
	t.Setenv("FAKEAGENT_REPORT", name)
	run(t, "", "-scenario", scenario(t, `{"sleep_ms":1},{"expect":"a","within_ms":1}`))
	got, err := os.ReadFile(name) // #nosec G304 -- ours
	if want := "step 1 sleep_ms\nstep 2 expect\nfailed step 2: no a\n"; string(got) != want || err != nil {
		t.Errorf("report %q, %v; want %q", got, err, want)
	}
}

func TestReplay(t *testing.T) {
	const transcript = `
{"t":0,"dir":"note","line":"spawn"}
{"t":1,"dir":"client->agent","line":"{\"id\": 1, \"method\": \"initialize\"}"}
{"t":2,"dir":"agent->client","line":"{\"result\":{\"id\":1}, \"id\" : 1 ,\"x\":0}"}
{"t":3,"dir":"send","line":"{\"id\":2,\"method\":\"_x/probe\"}"}
{"t":4,"dir":"recv","line":"{\"id\":2,\"error\":{}}"}
{"t":5,"dir":"recv","line":"a banner"}
{"t":5,"dir":"stderr","line":"a warning"}
{"t":6,"dir":"send","line":"{\"id\":3,\"method\":\"session/new\"}"}
{"t":7,"dir":"recv","b64":"/woh"}
{"t":7,"dir":"recv","line":"{\"id\":\"ask\",\"method\":\"session/request_permission\"}"}
{"t":8,"dir":"send","line":"{\"id\":\"ask\",\"result\":{}}"}
{"t":9,"dir":"recv","line":"{\"id\":3,\"result\":{}}"}
{"t":10,"dir":"exit","line":"4"}
`
	const conversation = `
>{"id":"a","method":"initialize"}
<{"result":{"id":1}, "id" : "a" ,"x":0}
>{"id":"b","method":"_other/probe"}
<{"jsonrpc":"2.0","id":"b","error":{"code":-32601,"message":"Method not found"}}
>{"id":"c","method":"session/new"}
<a banner
` + "<\xff\n<!\n" + `
<{"id":"ask","method":"session/request_permission"}
>{"id":"ask","result":{"outcome":"other"}}
<{"id":"c","result":{}}
>{"id":"d","method":"session/close"}
<{"jsonrpc":"2.0","id":"d","result":{}}
.`
	status, stderr := run(t, conversation, "-replay", file(t, transcript))
	if status != 4 || stderr != "a warning\n" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	if status, _ := run(t, ">{\"id\":1,\"method\":\"initialize\"}\n<{\"result\":{\"id\":1}, \"id\" : 1 ,\"x\":0}\n.", "-replay", file(t, transcript)); status != 8 {
		t.Errorf("left early: status %d, want 8", status)
	}
}

// friend is a client of the friendly runtime: it calls and collects.
type friend struct {
	t       *testing.T
	in      io.Writer
	out     *bufio.Reader
	text    string
	updates map[string]int
	answers map[string]string // to the runtime's requests, by method
}

func (f *friend) write(line string) {
	f.t.Helper()
	if _, err := io.WriteString(f.in, line+"\n"); err != nil {
		f.t.Fatal(err)
	}
}

// call sends a request with the id 1 and returns the answer to it.
func (f *friend) call(method, params string) string {
	f.t.Helper()
	f.text, f.updates = "", make(map[string]int)
	f.write(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`)
	for {
		line, err := f.out.ReadString('\n')
		if err != nil {
			f.t.Fatalf("%s: %v", method, err)
		}
		var m struct {
			JSONRPC       string
			ID            json.RawMessage
			Method        string
			Result, Error json.RawMessage
			Params        struct {
				Update struct {
					SessionUpdate string
					Content       struct{ Text string }
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
			f.t.Fatalf("%q: %v", line, err)
		}
		switch {
		case string(m.ID) == "1":
			return string(m.Result) + string(m.Error)
		case len(m.ID) > 0:
			f.write(`{"id":` + string(m.ID) + `,` + f.answers[m.Method] + `}`)
		}
		update := m.Params.Update
		f.updates[update.SessionUpdate]++
		if update.SessionUpdate == "agent_message_chunk" {
			f.text += update.Content.Text
		}
		if strings.Contains(update.Content.Text, "slowly") && f.updates["agent_message_chunk"] == 1 {
			f.write(`{"method":"session/cancel","params":{"sessionId":"fake-1"}}`)
		}
	}
}

func TestFriendly(t *testing.T) {
	for _, args := range [][]string{nil, {"-plain"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) { testFriendly(t, args) })
	}
}

func testFriendly(t *testing.T, args []string) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan int)
	go func() {
		status := script.Main(args, inR, outW, nopCloser{io.Discard})
		_ = outW.Close()
		ended <- status
	}()
	f := &friend{t: t, in: inW, out: bufio.NewReader(outR), answers: map[string]string{
		"session/request_permission": `"result":{"outcome":{"outcome":"selected","optionId":"no"}}`,
		"elicitation/create":         `"error":{"code":-32601,"message":"no"}`,
	}}
	rows := []struct{ method, params, answer, text string }{
		{"initialize", `{}`, `"name":"fake-agent"`, ""},
		{"session/prompt", `{"sessionId":"fake-1","prompt":[]}`, `-32602`, ""},
		{"session/new", `{}`, `{"sessionId":"fake-1"}`, ""},
		{"session/prompt", prompt("hello  there"), `end_turn`, `You said "hello there". I am a pretend runtime, so that is all I can do.`},
		{"session/prompt", prompt("permission"), `end_turn`, `You said "permission". You did not let me look around. I am a pretend runtime, so that is all I can do.`},
		{"session/prompt", prompt("ask"), `end_turn`, `You said "ask". I am a pretend runtime, so that is all I can do.`},
		{"session/prompt", prompt("long 3"), `end_turn`, `word word word `},
		{"session/prompt", prompt("Slow!"), `cancelled`, `slowly `},
		{"session/prompt", prompt("refuse"), `refusal`, ""},
		{"session/prompt", prompt("fail"), `-32603`, ""},
		{"session/load", `{"sessionId":"other"}`, `{}`, "We said hello."},
		{"session/load", `{}`, `-32602`, ""},
		{"session/close", `{"sessionId":"fake-1"}`, `{}`, ""},
		{"session/delete", `{"sessionId":"fake-1"}`, `{}`, ""},
		{"session/nosuch", `{}`, `-32601`, ""},
	}
	for _, row := range rows {
		if got := f.call(row.method, row.params); !strings.Contains(got, row.answer) || f.text != row.text {
			t.Errorf("%s %s: %s, text %q", row.method, row.params, got, f.text)
		}
	}
	f.call("session/prompt", prompt("hello"))
	if f.updates["tool_call"] != 1 || f.updates["tool_call_update"] != 1 {
		t.Errorf("updates %v, want a tool", f.updates)
	}
	if plain := len(args) > 0; (f.updates["fake_mood_update"] == 0) != plain {
		t.Errorf("updates %v with %v", f.updates, args)
	}
	f.write(`{"id":2,"method":"session/prompt","params":` + prompt("crash") + `}`)
	_, _ = io.Copy(io.Discard, f.out)
	if status := <-ended; status != 3 {
		t.Errorf("status %d after a crash, want 3", status)
	}
	_ = inW.Close()
}

func prompt(text string) string {
	return `{"sessionId":"fake-1","prompt":[{"type":"text","text":"` + text + `"}]}`
}

// process starts the fake runtime as a process of its own.
func process(t *testing.T, args ...string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0], args...) // #nosec G204 G702 -- this test
	cmd.Env = append(os.Environ(), "FAKEAGENT_PROCESS=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err = cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, in, out
}

func TestProcess(t *testing.T) {
	tests := []struct {
		name, steps, conversation string
		status                    int
		wrap                      bool
	}{
		{"exit", `{"exit":7}`, ``, 7, false},
		{"wrapped", `{"expect":"a"},{"send":"${id:a}"},{"exit":7}`, ">{\"id\":1,\"method\":\"a\"}\n<1", 7, true},
		{"closed input", `{"close_stdin":true},{"expect":"a","within_ms":5000}`, ``, 8, false},
		{"reads no more", `{"expect":"b"},{"stop_reading":true},{"send":"x"},{"expect":"a","within_ms":50}`,
			">{\"method\":\"b\"}\n<x\n>{\"method\":\"a\"}", 9, false},
		{"writer", `{"spawn_writer":1,"line":"w"},{"sleep_ms":300},{"exit":0}`, "<w\n<w\n<w", 0, false},
		{"replacing children", `{"respawn":2,"gap_ms":10,"seconds":1},{"sleep_ms":50},{"send":"x"}`, "<x", 0, false},
		{"killed", `{"send":"x"},{"kill_self":true},{"sleep_ms":60000}`, `<x`, -1, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			args := []string{"-scenario", scenario(t, test.steps)}
			if test.wrap {
				args = append([]string{"-wrap"}, args...)
			}
			cmd, in, out := process(t, args...)
			talk(t, in, out, test.conversation)
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != test.status {
				t.Errorf("status %d, want %d", got, test.status)
			}
		})
	}
}
