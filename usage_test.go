package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSourceFor(t *testing.T) {
	for _, tt := range []struct {
		command string
		want    bool
	}{
		{"gemini --acp", true},
		{"/usr/local/bin/gemini", true},
		{"gemini-cli", true},
		{"npx -y @google/gemini-cli@0.61.0 --acp", true},
		{"npx @google/gemini-cli", true},
		{"node /opt/x/gemini.js --acp", true},
		{"node gemini.mjs", true},
		{"node gemini.cjs", true},
		{`C:\bin\gemini.cmd --acp`, true},
		{"gemini.exe", true},
		{"gemini.bat", true},
		{"gemini.ps1", true},
		{"sh -c gemini", true},
		{"gemini@latest", true},
		{"mygemini", false},
		{"gemini-proxy", false},
		{"gemini.sh", false},
		{"gemini.js.js", false},
		{"@gemini", false},
		{"/opt/gemini/run", false},
		{"qwen --acp", false},
		{"", false},
	} {
		src := sourceFor(strings.Fields(tt.command))
		if (src != nil) != tt.want {
			t.Errorf("%q: claimed %v, want %v", tt.command, src != nil, tt.want)
		}
		if tt.want && src != sourceNamed("gemini-cli") {
			t.Errorf("%q: claimed by another source than the handshake's", tt.command)
		}
	}
	for _, name := range []string{"", "gemini", "Gemini-CLI", "qwen-code"} {
		if sourceNamed(name) != nil {
			t.Errorf("a source reads %q", name)
		}
	}
}

func TestQuotaBound(t *testing.T) {
	for _, tt := range []struct {
		result string
		want   int64
	}{
		{`{"stopReason":"end_turn","_meta":{"quota":{"token_count":{"input_tokens":1111,"output_tokens":222}}}}`, 1333},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":5}}}}`, 5},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":-5,"output_tokens":2}}}}`, 2},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":"7","output_tokens":2}}}}`, 2},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":9223372036854775807,"output_tokens":9223372036854775807}}}}`, mostTokens},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":1e40}}}}`, 0},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":0,"output_tokens":0}}}}`, 0},
		{`{"_meta":{"quota":null}}`, 0},
		{`{"_meta":[1]}`, 0},
		{`{"stopReason":"end_turn"}`, 0},
		{`null`, 0},
		{`{`, 0},
		{``, 0},
	} {
		if got := quotaBound([]byte(tt.result)); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.result, got, tt.want)
		}
	}
}

func TestFigureNeverOverflows(t *testing.T) {
	var f figure
	for range 5 {
		f.add(math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64)
	}
	if u := f.usage(); u.Input <= 0 || u.Output <= 0 || u.Total != u.Input+u.Output || u.Total < u.Input || u.CacheRead > u.Input {
		t.Errorf("usage %+v", u)
	}
	f = figure{}
	f.add(10, 1, 0, 99)
	if f.cached != 10 {
		t.Errorf("%d tokens of 10 were cached", f.cached)
	}
}

// A fakeGauge knows more as time goes by.
type fakeGauge struct {
	born  time.Time
	known []known
	other figure
}

type known struct {
	at time.Duration // since the gauge was made
	figure
}

func (g *fakeGauge) open(string, []string) {}
func (g *fakeGauge) discard() error        { return nil }
func (g *fakeGauge) readOther() figure     { return g.other }
func (g *fakeGauge) read() (f figure) {
	for _, k := range g.known {
		if time.Since(g.born) >= k.at {
			f = k.figure
		}
	}
	return f
}

// modelCalls is the figure of n model calls as the recorded runtime counts them;
// their bound is 1333 each.
func modelCalls(n int64) figure {
	return figure{input: 1111 * n, output: 266 * n, cached: 33 * n, plain: 1333 * n, model: "m"}
}

func TestMeter(t *testing.T) {
	const forever = 30 * time.Second
	answered := func(bound int64) spent { return spent{showed: true, answered: true, bound: bound} }
	type turn struct {
		spent
		limit  time.Duration // the read timeout; 0: forever
		cancel time.Duration // the context ends after this; 0: never; -1: before
		// what comes of it
		report      int64 // calls in the reported figure; 0: no report
		unaccounted bool
		dropped     bool
		took        time.Duration
	}
	at := func(d time.Duration, n int64) known { return known{d, modelCalls(n)} }
	for _, tt := range []struct {
		name  string
		known []known
		other figure
		turns []turn
	}{
		{"caught up at the tick", []known{at(5*time.Second, 1)}, figure{}, []turn{
			{spent: answered(1333), report: 1, took: 5 * time.Second}}},
		{"there at once", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1333), report: 1}}},
		{"a quota alone shows the model", []known{at(0, 1)}, figure{}, []turn{
			{spent: spent{answered: true, bound: 1333}, report: 1}}},
		{"a turn without the model waits for nothing and drops nothing", nil, figure{}, []turn{
			{spent: spent{answered: true}},
			{spent: spent{}}}},
		{"nothing at all drops the source, once", nil, figure{}, []turn{
			{spent: answered(1333), unaccounted: true, dropped: true, took: 6 * time.Second},
			{spent: answered(1333), unaccounted: true}}},
		{"nothing, in words of zeros", []known{at(0, 0)}, modelCalls(0), []turn{
			{spent: answered(0), unaccounted: true, dropped: true, took: 6 * time.Second}}},
		{"after one figure it stays for good", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1333), report: 1},
			{spent: answered(1333), unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), unaccounted: true, took: 6 * time.Second}}},
		{"without a bound the wait runs its time", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(0), report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"a figure below the bound", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(2666), report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"a thought token is none of the bound's", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1334), report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"cut by the read timeout, the source stays", []known{at(5*time.Second, 1)}, figure{}, []turn{
			{spent: answered(1333), limit: time.Second, unaccounted: true, took: time.Second},
			{spent: answered(0), limit: 10 * time.Second, report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"cut with a part of the figure there", []known{at(0, 1)}, modelCalls(2), []turn{
			{spent: answered(2666), limit: time.Second, unaccounted: true, took: time.Second}}},
		{"a read timeout of just the source's time", nil, modelCalls(1), []turn{
			{spent: answered(1333), limit: 6 * time.Second, report: 1, took: 6 * time.Second}}},
		{"what earlier bounds lack is waited for", []known{at(3*time.Second, 1), at(5*time.Second, 2)}, figure{}, []turn{
			{spent: answered(1333), limit: time.Second, unaccounted: true, took: time.Second},
			{spent: answered(1333), report: 2, took: 4 * time.Second}}},
		{"a late figure of an earlier turn covers that turn only", []known{at(0, 1), at(7*time.Second, 2), at(20*time.Second, 3)}, figure{}, []turn{
			{spent: answered(2666), report: 1, unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), report: 2, unaccounted: true, took: 6 * time.Second},
			{spent: answered(0), limit: 9 * time.Second, unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), limit: 9 * time.Second, report: 3, unaccounted: true, took: 6 * time.Second}}},
		{"the other place when time is up", nil, modelCalls(1), []turn{
			{spent: answered(1333), report: 1, took: 6 * time.Second}}},
		{"the larger total wins", []known{at(0, 2)}, modelCalls(1), []turn{
			{spent: answered(4000), report: 2, unaccounted: true, took: 6 * time.Second}}},
		{"growth counts from the last report, whoever made it", []known{at(7*time.Second, 1), at(10*time.Second, 2)}, modelCalls(1), []turn{
			{spent: answered(1333), report: 1, took: 6 * time.Second},
			{spent: answered(1333), report: 2, took: 4 * time.Second}}},
		{"a figure that falls is not reported", []known{at(0, 3), at(time.Second, 1)}, figure{}, []turn{
			{spent: answered(3999), report: 3},
			{spent: answered(1333), unaccounted: true, took: 6 * time.Second}}},
		{"the context's end releases the wait", []known{at(5*time.Second, 1)}, modelCalls(1), []turn{
			{spent: answered(1333), cancel: time.Second, unaccounted: true, took: time.Second}}},
		{"a context that has ended gets one look", []known{at(0, 1)}, figure{}, []turn{
			{spent: spent{showed: true}, cancel: -1, report: 1, unaccounted: true}}},
		{"a turn without an answer has no bound", []known{at(0, 1), at(8*time.Second, 2)}, figure{}, []turn{
			{spent: spent{showed: true, bound: 9999}, report: 1, unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), report: 2, took: 2 * time.Second}}},
		{"no time at all", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1333), limit: -1, report: 1},
			{spent: answered(1333), limit: -1, unaccounted: true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &meter{gauge: &fakeGauge{time.Now(), tt.known, tt.other}, delay: gemini{}.delay()}
				var last int64
				for i, tu := range tt.turns {
					ctx, cancel := context.WithCancel(t.Context())
					switch {
					case tu.cancel < 0:
						cancel()
					case tu.cancel > 0:
						time.AfterFunc(tu.cancel, cancel)
					}
					limit := tu.limit
					if limit == 0 {
						limit = forever
					}
					begun := time.Now()
					got := m.turn(ctx, tu.spent, limit)
					cancel()
					last = max(last, tu.report)
					want := reading{
						report: tu.report > 0, usage: modelCalls(last).usage(), measured: last > 0,
						unaccounted: tu.unaccounted, dropped: tu.dropped,
					}
					if last > 0 {
						want.model = "m"
					}
					if got != want {
						t.Errorf("turn %d: %+v, want %+v", i+1, got, want)
					}
					if took := time.Since(begun); took != tu.took {
						t.Errorf("turn %d took %v, want %v", i+1, took, tu.took)
					}
				}
			})
		})
	}
}

func TestMeterWithoutSource(t *testing.T) {
	m, env, err := armSource(nil)
	if err != nil || env != nil {
		t.Fatal(env, err)
	}
	m.open("s", nil)
	if got, want := m.turn(t.Context(), spent{showed: true, answered: true}, time.Hour), (reading{unaccounted: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := m.discard(); err != nil {
		t.Error(err)
	}
}

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
	if serr != nil || fi.Mode().Perm()&0o077 != 0 {
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
	if got, want := r.read(), named(2, model); got != want {
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
		{"the router's call", "", answerRecord(1, "role", `"utility_router"`) + one, modelCalls(2)},
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
		{"the chatHeader comes twice", "", chatHeader + chatHeader + one + chatLine("2", 1, "m"), modelCalls(2)},
		{"the last of an id wins", "", chatHeader + chatLine("1", 4, "x") + one, modelCalls(1)},
		{"a rewrite without tokens takes nothing away", "", chatHeader + one + `{"id":"1","toolCalls":[]}` + "\n", modelCalls(1)},
		{"tokens come with a rewrite", "", chatHeader + `{"id":"1","toolCalls":[]}` + "\n" + one, modelCalls(1)},
		{"what was there does not count", chatHeader + one, chatLine("2", 1, "m"), modelCalls(1)},
		{"nor when it is written again", chatHeader + one, chatLine("1", 9, "x") + chatLine("2", 1, "m"), modelCalls(1)},
		{"nor with tokens it did not have", chatHeader + `{"id":"1"}` + "\n", one, figure{}},
		{"nor what a change listed", chatHeader + `{"$set":{"messages":[{"id":"1"}]}}` + "\n", one + chatLine("2", 1, "m"), modelCalls(1)},
		{"a change that lists messages", "", chatHeader + `{"$set":{"messages":[` + one + `]}}` + "\n", figure{}},
		{"the same on one line", "", chatHeader + `{"$set":{"messages":[` + strings.TrimSpace(one) + `]}}` + "\n" + one, modelCalls(1)},
		{"half a line", "", chatHeader + one + strings.TrimSpace(chatLine("2", 1, "m")), modelCalls(1)},
		{"a broken line", "", chatHeader + `{"id":"2","tokens":{` + "\n" + one, modelCalls(1)},
		{"another session's file", "", `{"sessionId":"S"}` + "\n" + one, figure{}},
		{"no header", "", one, figure{}},
		{"half a header", "", `{"sessionId":"s"}`, figure{}},
		{"a chatHeader without end", "", `{"sessionId":"s"` + strings.Repeat(" ", maxHeader) + "}\n" + one, figure{}},
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

// Whatever a runtime does to the file, what was counted stays counted, nothing
// blocks, and what comes behind a broken bound does not count.
func TestHostileTelemetry(t *testing.T) {
	one := answerRecord(1)
	for _, tt := range []struct {
		name string
		do   func(r *rig, file string)
		want figure // with one record before and one behind
	}{
		{"nothing", func(*rig, string) {}, modelCalls(2)},
		{"just the unread that is allowed", func(r *rig, file string) { growFile(r.t, file, maxUnread) }, modelCalls(2)},
		{"too much unread", func(r *rig, file string) { growFile(r.t, file, maxUnread+1) }, modelCalls(1)},
		{"a value of the size that is allowed", func(r *rig, file string) {
			appendFile(r.t, file, `{"a":"`+strings.Repeat("x", maxValue-8)+`"}`)
		}, modelCalls(2)},
		{"a value above that", func(r *rig, file string) {
			appendFile(r.t, file, `{"a":"`+strings.Repeat("x", maxValue)+`"}`)
		}, modelCalls(1)},
		{"shrunk", func(r *rig, file string) {
			if err := os.Truncate(file, 3); err != nil {
				r.t.Fatal(err)
			}
		}, modelCalls(1)},
		{"replaced", func(r *rig, file string) { r.replace(file, one+one+one) }, modelCalls(1)},
		{"removed and made again", func(r *rig, file string) {
			if err := os.Rename(file, file+".old"); err != nil {
				r.t.Fatal(err)
			}
			appendFile(r.t, file, one+one+one)
		}, modelCalls(1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.begin("s")
			file := filepath.Join(r.dir, telemetryFile)
			r.telemetry(one)
			r.read()
			tt.do(r, file)
			r.read()
			r.telemetry(one)
			if got := r.read(); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestHostileJournal(t *testing.T) {
	const file = "a.jsonl"
	for _, tt := range []struct {
		name string
		do   func(r *rig)
		want figure // with one message before and one behind
	}{
		{"nothing", func(*rig) {}, modelCalls(2)},
		{"too much unread", func(r *rig) { growFile(r.t, r.chatPath(file), maxUnread+1) }, modelCalls(1)},
		{"too much unread in several files", func(r *rig) {
			for i := range 3 {
				name := fmt.Sprintf("0%d.jsonl", i)
				r.chat(name, chatHeader)
				growFile(r.t, r.chatPath(name), maxUnread/2)
			}
		}, modelCalls(1)},
		{"a line that does not end", func(r *rig) {
			r.chat(file, "{")
			growFile(r.t, r.chatPath(file), maxValue)
		}, modelCalls(1)},
		{"too many messages", func(r *rig) {
			var b strings.Builder
			for i := range maxMessages {
				fmt.Fprintf(&b, `{"id":"i%d","tokens":{}}`+"\n", i)
			}
			r.chat(file, b.String())
		}, modelCalls(1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.begin("s")
			r.chat(file, chatHeader+chatLine("1", 1, "m"))
			r.readOther()
			tt.do(r)
			r.readOther()
			r.chat(file, chatLine("2", 1, "m"))
			if got := r.readOther(); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
	t.Run("too much at open", func(t *testing.T) {
		r := newRig(t)
		r.chat(file, chatHeader)
		growFile(t, r.chatPath(file), maxUnread)
		r.begin("s")
		r.chat(file, "\n"+chatLine("2", 1, "m"))
		if got := r.readOther(); got != (figure{}) {
			t.Errorf("%+v", got)
		}
	})
}

// The gauge and the meter together, in the time of a batch tick.
func TestGeminiTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		m := &meter{gauge: r.geminiGauge, delay: gemini{}.delay()}
		m.open("s", []string{"GEMINI_CLI_HOME=" + r.home})
		call := spent{showed: true, answered: true, bound: 1333}
		check := func(what string, n int64, took time.Duration) {
			t.Helper()
			begun := time.Now()
			got := m.turn(t.Context(), call, 30*time.Second)
			if want := (reading{report: true, usage: modelCalls(n).usage(), model: "m", measured: true}); got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
			if d := time.Since(begun); d != took {
				t.Errorf("%s took %v, want %v", what, d, took)
			}
		}
		time.AfterFunc(4950*time.Millisecond, func() { r.telemetry(answerRecord(1)) })
		check("telemetry at the tick", 1, 5*time.Second)
		r.chat("a.jsonl", chatHeader+chatLine("1", 1, "m")+chatLine("2", 1, "m"))
		check("the journal when the tick does not come", 2, 6*time.Second)
		r.telemetry(answerRecord(1) + answerRecord(1))
		check("telemetry that made up for it", 3, 0)
	})
}

// Whatever is in the file and however it arrives, the figure never falls, is
// never negative and does not depend on the pieces; what another decoder takes
// for a stream of objects is counted as that decoder counts.
func FuzzTelemetry(f *testing.F) {
	f.Add([]byte(answerRecord(1)+answerRecord(2)), uint16(5))
	f.Add([]byte(answerRecord(1, "input_token_count", "9223372036854775807")+answerRecord(1)), uint16(100))
	f.Add([]byte(`{"a":"}{\"\\"}`+answerRecord(1)+`{`), uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, piece uint16) {
		if len(data) > 1<<16 {
			t.Skip()
		}
		read := func(piece int) (sum figure) {
			g := geminiGauge{session: "s"}
			for end := 0; end < len(data); {
				end = min(end+piece, len(data))
				err := g.log.scan(bytes.NewReader(data[:end]), int64(end), func(_ int64, v []byte) bool { g.record(v); return true })
				if err != nil {
					t.Fatal(err)
				}
				if up, _ := sum.raised(g.sum); sum.total() < 0 || up.usage() != g.sum.usage() {
					t.Fatalf("from %+v to %+v", sum, g.sum)
				}
				sum = g.sum
			}
			return sum
		}
		got := read(len(data) + 1)
		if pieces := read(int(piece) + 1); pieces != got {
			t.Fatalf("%+v in pieces, %+v at once", pieces, got)
		}
		g := geminiGauge{session: "s"}
		for d := json.NewDecoder(bytes.NewReader(data)); ; {
			var v json.RawMessage
			if err := d.Decode(&v); err != nil {
				if d.InputOffset() == int64(len(data)) && got != g.sum {
					t.Fatalf("%+v, want %+v", got, g.sum)
				}
				return
			}
			if v[0] != '{' {
				return
			}
			g.record(v)
		}
	})
}

// The same for the journal, whose figure may fall; what is reported may not.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(chatLine("1", 1, "m")+chatLine("2", 3, "m")+chatLine("1", 0, "m")), uint16(9))
	f.Add([]byte(`{"$set":{"messages":[`+strings.TrimSpace(chatLine("1", 1, "m"))+"]}}\n"), uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, piece uint16) {
		if len(data) > 1<<16 {
			t.Skip()
		}
		read := func(piece int) figure {
			j := journal{before: map[string]bool{}, spent: map[string]figure{}}
			s := stream{lines: true}
			var last figure
			for end := 0; end < len(data); {
				end = min(end+piece, len(data))
				err := s.scan(bytes.NewReader(data[:end]), int64(end), func(_ int64, v []byte) bool { return j.line(v, false) })
				if err != nil {
					t.Fatal(err)
				}
				next, _ := last.raised(j.figure())
				if u := next.usage(); u.Input < last.input || u.Output < last.output || u.CacheRead > u.Input || u.Total < 0 {
					t.Fatalf("from %+v to %+v", last, next)
				}
				last = next
			}
			return j.figure()
		}
		if a, b := read(len(data)+1), read(int(piece)+1); a != b {
			t.Fatalf("%+v at once, %+v in pieces", a, b)
		}
	})
}
