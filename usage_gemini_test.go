package acp

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestArm(t *testing.T) {
	work := t.TempDir()
	t.Chdir(work)
	if err := os.Mkdir("tmp", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", "tmp") // a relative one; the runtime works elsewhere
	t.Setenv("TMP", filepath.Join(work, "tmp"))
	m, env, err := armSource(gemini{})
	if err != nil {
		t.Fatal(err)
	}
	out, ok := strings.CutPrefix(env[2], "GEMINI_TELEMETRY_OUTFILE=")
	if want := []string{"GEMINI_TELEMETRY_ENABLED=true", "GEMINI_TELEMETRY_TARGET=local"}; !ok || !slices.Equal(env[:2], want) {
		t.Errorf("environment %q", env)
	}
	if !filepath.IsAbs(out) || filepath.Base(out) != "telemetry.json" {
		t.Errorf("telemetry goes to %q", out)
	}
	fi, serr := os.Stat(filepath.Dir(out))
	if serr != nil || runtime.GOOS != "windows" && fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("directory %v, %v", fi, serr)
	}
	appendFile(t, out, "x")
	for range 2 {
		if err := m.discard(); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir("tmp"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	t.Setenv("TMPDIR", "none")
	t.Setenv("TMP", filepath.Join(work, "none"))
	if _, _, err := armSource(gemini{}); err == nil {
		t.Error("a directory was made nowhere")
	}
}

func TestGeminiHome(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	t.Setenv("GEMINI_CLI_HOME", "")
	abs := func(s string) string { return filepath.Join(home, s) }
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{"this process's environment", nil, home},
		{"an empty environment", []string{}, home},
		{"last value wins", []string{"GEMINI_CLI_HOME=" + abs("a"), "X=1", "GEMINI_CLI_HOME=" + abs("b")}, abs("b")},
		{"an empty value is none", []string{"GEMINI_CLI_HOME=" + abs("a"), "GEMINI_CLI_HOME="}, home},
		{"the child's own home", []string{"HOME=" + abs("c"), "USERPROFILE=" + abs("c")}, abs("c")},
		{"before the child's own home", []string{"HOME=" + abs("c"), "GEMINI_CLI_HOME=" + abs("a")}, abs("a")},
		{"from the child's directory", []string{"GEMINI_CLI_HOME=d", "PWD=" + abs("w")}, abs("w/d")},
		{"another name", []string{"XGEMINI_CLI_HOME=" + abs("a")}, home},
	} {
		if got := geminiHome(tt.env); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	t.Setenv("GEMINI_CLI_HOME", abs("a"))
	if got := geminiHome(nil); got != abs("a") {
		t.Errorf("inherited: %q", got)
	}
}

// The sessions of the recorded files.
const (
	recordedTelemetry = "77b1b1ad-a77f-4786-bc44-0390d4fb9de0" // a router call and a main call
	recordedChat      = "194c46c0-76b4-457c-8283-d7e8c55732cc" // five calls
)

// A rig is an armed gauge, a home and a way to write to both.
type rig struct {
	t *testing.T
	*geminiGauge
	home string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g, _, err := gemini{}.arm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.discard(); err != nil {
			t.Error(err)
		}
	})
	return &rig{t, g.(*geminiGauge), t.TempDir()}
}

func (r *rig) begin(session string) { r.open(session, []string{"GEMINI_CLI_HOME=" + r.home}) }

func (r *rig) telemetry(text string) { appendFile(r.t, filepath.Join(r.dir, telemetryFile), text) }

func (r *rig) chatPath(name string) string {
	return filepath.Join(r.home, ".gemini", "tmp", "project", "chats", name)
}

func (r *rig) chat(name, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(r.chatPath(name)), 0o700); err != nil {
		r.t.Fatal(err)
	}
	appendFile(r.t, r.chatPath(name), text)
}

func appendFile(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func usageFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "usage", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRecordedFiles(t *testing.T) {
	telemetry, chat := usageFile(t, "gemini-0.61-telemetry.log"), usageFile(t, "gemini-0.61-chat.jsonl")
	named := func(n int64, model string) figure { f := modelCalls(n); f.model = model; return f }
	const model = "gemini-2.5-pro"

	r := newRig(t)
	r.begin(recordedTelemetry)
	if got := r.read(); got != (figure{}) {
		t.Errorf("before the first flush: %+v", got)
	}
	r.telemetry(telemetry)
	want := named(2, model)
	want.plain = named(1, model).plain // the router's call is in no quota
	if got := r.read(); got != want {
		t.Errorf("telemetry: %+v, want %+v", got, want)
	}
	r = newRig(t)
	r.begin("e910a1f8-8118-456d-bac7-6a6903da7191") // the process's own session
	r.telemetry(telemetry)
	if got := r.read(); got != (figure{}) {
		t.Errorf("telemetry of another session: %+v", got)
	}

	r = newRig(t)
	r.begin(recordedChat)
	r.chat("session.jsonl", chat)
	if got, want := r.readOther(), named(5, model); got != want {
		t.Errorf("journal: %+v, want %+v", got, want)
	}
	// The session continued: earlier usage does not count.
	r.begin(recordedChat)
	if got := r.readOther(); got != (figure{}) {
		t.Errorf("journal at open: %+v", got)
	}
	r.chat("session.jsonl", chat+chatLine("new", 1, model))
	if got, want := r.readOther(), named(1, model); got != want {
		t.Errorf("journal, continued: %+v, want %+v", got, want)
	}
	r.begin(recordedTelemetry)
	r.chat("session.jsonl", chat)
	if got := r.readOther(); got != (figure{}) {
		t.Errorf("journal of another session: %+v", got)
	}
}

// answerRecord is a telemetry record of n model calls in one, of session s.
// change sets attributes, name by value; an empty value removes one.
func answerRecord(n int64, change ...string) string {
	attrs := fmt.Sprintf(`{
    "session.id": "s",
    "event.name": "gemini_cli.api_response",
    "model": "m",
    "input_token_count": %d,
    "output_token_count": %d,
    "cached_content_token_count": %d,
    "thoughts_token_count": %d
  }`, 1111*n, 222*n, 33*n, 44*n)
	for i := 0; i+1 < len(change); i += 2 {
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte(attrs), &m); err != nil {
			panic(err)
		}
		if change[i+1] == "" {
			delete(m, change[i])
		} else {
			m[change[i]] = json.RawMessage(change[i+1])
		}
		b, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		attrs = string(b)
	}
	return "{\n  \"hrTime\": [1, 2],\n  \"attributes\": " + attrs + ",\n  \"_body\": \"a \\\"}{\\\\\"\n}\n"
}

func TestTelemetry(t *testing.T) {
	routed := modelCalls(2)
	routed.plain = modelCalls(1).plain // no quota counts the router
	t.Parallel()
	one := answerRecord(1)
	for _, tt := range []struct {
		name   string
		before string // there at open
		text   string
		want   figure
	}{
		{"one", "", one, modelCalls(1)},
		{"several", "", one + one + answerRecord(3), modelCalls(5)},
		{"no separator", "", strings.TrimSpace(one) + strings.TrimSpace(one), modelCalls(2)},
		{"half a value at the end", "", one + one[:len(one)/2], modelCalls(1)},
		{"what was there does not count", one + one, one, modelCalls(1)},
		{"nor what began before", one[:len(one)/2], one[len(one)/2:] + one, modelCalls(1)},
		{"another event", "", answerRecord(1, "event.name", `"gemini_cli.api_request"`, "note", `"gemini_cli.api_response"`), figure{}},
		{"another session", "", answerRecord(1, "session.id", `"S"`), figure{}},
		{"the router's call", "", answerRecord(1, "role", `"utility_router"`) + one, routed},
		{"no input count", "", answerRecord(1, "input_token_count", "") + one, modelCalls(1)},
		{"no output count", "", answerRecord(1, "output_token_count", "") + one, modelCalls(1)},
		{"no cached count", "", answerRecord(1, "cached_content_token_count", "") + one, modelCalls(1)},
		{"no thoughts count", "", answerRecord(1, "thoughts_token_count", "") + one, modelCalls(1)},
		{"null", "", answerRecord(1, "thoughts_token_count", "null") + one, modelCalls(1)},
		{"negative", "", answerRecord(1, "input_token_count", "-1") + one, modelCalls(1)},
		{"a fraction", "", answerRecord(1, "input_token_count", "1.5") + one, modelCalls(1)},
		{"a string", "", answerRecord(1, "input_token_count", `"1111"`) + one, modelCalls(1)},
		{"beyond every number", "", answerRecord(1, "input_token_count", "1e400") + one, modelCalls(1)},
		{"zeros", "", answerRecord(0, "model", ""), figure{}},
		{"the last record's model", "", answerRecord(1, "model", `"x"`) + one, modelCalls(1 + 1)},
		{"no model keeps the last", "", one + answerRecord(1, "model", "") + answerRecord(1, "model", `"`+strings.Repeat("x", maxName+1)+`"`), modelCalls(3)},
		{"no JSON is passed over", "", "\x00 log line\n" + one + "{ x \"y\" }" + one, modelCalls(2)},
		{"metrics repeat totals", "", `{"scopeMetrics":[{"name":"gemini_cli.token.usage","value":1111,"gemini_cli.api_response":1}]}` + one, modelCalls(1)},
		{"attributes of another type", "", `{"attributes":["gemini_cli.api_response"]}` + one, modelCalls(1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Byte by byte, in odd pieces, and at once.
			for _, piece := range []int{1, 7, len(tt.text)} {
				r := newRig(t)
				if tt.before != "" {
					r.telemetry(tt.before)
				}
				r.begin("s")
				for text := []byte(tt.text); len(text) > 0; {
					n := min(piece, len(text))
					r.telemetry(string(text[:n]))
					text = text[n:]
					r.read()
				}
				if got := r.read(); got != tt.want {
					t.Errorf("in pieces of %d: %+v, want %+v", piece, got, tt.want)
				}
			}
		})
	}
}

const chatHeader = `{"sessionId":"s","projectHash":"h","kind":"main"}` + "\n"

// chatLine is a line of the journal with n model calls in one.
func chatLine(id string, n int64, model string) string {
	return fmt.Sprintf(`{"id":%q,"type":"gemini","content":"x","tokens":{"input":%d,"output":%d,"cached":%d,"thoughts":%d,"tool":0,"total":0},"model":%q}`+"\n",
		id, 1111*n, 222*n, 33*n, 44*n, model)
}

func TestJournal(t *testing.T) {
	one := chatLine("1", 1, "m")
	for _, tt := range []struct {
		name   string
		before string // there at open
		text   string
		want   figure
	}{
		{"one", "", chatHeader + one, modelCalls(1)},
		{"the header comes twice", "", chatHeader + chatHeader + one + chatLine("2", 1, "m"), modelCalls(2)},
		{"the last of an id wins", "", chatHeader + chatLine("1", 4, "x") + one, modelCalls(1)},
		{"a rewrite without tokens takes nothing away", "", chatHeader + one + `{"id":"1","toolCalls":[]}` + "\n", modelCalls(1)},
		{"tokens come with a rewrite", "", chatHeader + `{"id":"1","toolCalls":[]}` + "\n" + one, modelCalls(1)},
		{"what was there does not count", chatHeader + one, chatLine("2", 1, "m"), modelCalls(1)},
		{"nor when it is written again", chatHeader + one, chatLine("1", 9, "x") + chatLine("2", 1, "m"), modelCalls(1)},
		{"nor with tokens it did not have", chatHeader + `{"id":"1"}` + "\n", one, figure{}},
		{"nor what a change listed", chatHeader + `{"$set":{"messages":[{"id":"1"}]}}` + "\n", one + chatLine("2", 1, "m"), modelCalls(1)},
		{"a change on several lines", "", chatHeader + `{"$set":{"messages":[` + one + `]}}` + "\n", figure{}},
		{"a change that lists messages", "", chatHeader + `{"$set":{"messages":[` + strings.TrimSpace(one) + `]}}` + "\n" + one, modelCalls(1)},
		{"half a line", "", chatHeader + one + strings.TrimSpace(chatLine("2", 1, "m")), modelCalls(1)},
		{"a broken line", "", chatHeader + `{"id":"2","tokens":{` + "\n" + one, modelCalls(1)},
		{"another session's file", "", `{"sessionId":"S"}` + "\n" + one, figure{}},
		{"no header", "", one, figure{}},
		{"half a header", "", `{"sessionId":"s"}`, figure{}},
		{"a header without end", "", `{"sessionId":"s"` + strings.Repeat(" ", maxHeader) + "}\n" + one, figure{}},
		{"no id", "", chatHeader + chatLine("", 1, "m"), figure{}},
		{"an endless id", "", chatHeader + chatLine(strings.Repeat("x", maxName+1), 1, "m"), figure{}},
		{"negative", "", chatHeader + chatLine("2", -1, "m") + one, modelCalls(1)},
		{"a fraction", "", chatHeader + `{"id":"2","tokens":{"input":1.5,"output":1}}` + "\n" + one, modelCalls(1)},
		{"no thoughts, nothing cached", "", chatHeader + `{"id":"2","tokens":{"input":3,"output":1}}` + "\n", figure{input: 3, output: 1, plain: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{37, len(tt.text)} {
				r := newRig(t)
				if tt.before != "" {
					r.chat("a.jsonl", tt.before)
				}
				r.begin("s")
				for text := []byte(tt.text); len(text) > 0; {
					n := min(piece, len(text))
					r.chat("a.jsonl", string(text[:n]))
					text = text[n:]
					r.readOther()
				}
				if got := r.readOther(); got != tt.want {
					t.Errorf("in pieces of %d: %+v, want %+v", piece, got, tt.want)
				}
			}
		})
	}
}

func TestJournalFiles(t *testing.T) {
	r := newRig(t)
	r.chat("old.jsonl", chatHeader+chatLine("1", 1, "m"))
	r.begin("s")
	// The continued session got a second file, which repeats the first.
	r.chat("new.jsonl", chatHeader+chatLine("1", 1, "m")+chatLine("2", 1, "m"))
	r.chat("other.json", chatHeader+chatLine("3", 1, "m"))
	r.chat("../../../logs.jsonl", chatHeader+chatLine("4", 1, "m"))
	if got := r.readOther(); got != modelCalls(1) {
		t.Errorf("%+v", got)
	}
	// A file that is written anew is read anew; a message counts once.
	r.replace(r.chatPath("new.jsonl"), chatHeader+chatLine("2", 1, "m")+chatLine("5", 1, "m"))
	if got := r.readOther(); got != modelCalls(2) {
		t.Errorf("replaced: %+v", got)
	}
	if err := os.Truncate(r.chatPath("new.jsonl"), 0); err != nil {
		t.Fatal(err)
	}
	if got := r.readOther(); got != modelCalls(2) {
		t.Errorf("emptied: %+v", got)
	}
}

// replace puts another file in the place of one.
func (r *rig) replace(name, text string) {
	r.t.Helper()
	appendFile(r.t, name+".new", text)
	if err := os.Rename(name+".new", name); err != nil {
		r.t.Fatal(err)
	}
}

// growFile makes a file larger by n bytes that take no space.
func growFile(t *testing.T, name string, n int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := f.Stat()
	if err == nil {
		err = f.Truncate(fi.Size() + n)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}
