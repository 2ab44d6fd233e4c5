package acp_test

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sortie-ai/acp"
)

// hostile holds all that a terminal or a log could obey, and ends harmlessly.
const hostile = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x00 \u0085\u009b5m\u009d0;t\u009c" +
	"\u202etxt.exe\u202c \u2066i\u2069 \b\b\x7f \r\n \x1b(0 \xff\xfe end"

// dirty returns what is wrong with text of the runtime that has left the
// package. Newlines and tabs may stand in messages alone.
func dirty(s string, lines bool, most int) string {
	if n := utf8.RuneCountInString(s); n > most {
		return strconv.Itoa(n) + " runes"
	}
	if !utf8.ValidString(s) {
		return "invalid UTF-8"
	}
	for _, r := range s {
		control := r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
		if control && !(lines && (r == '\n' || r == '\t')) {
			return strconv.QuoteRune(r)
		}
	}
	return ""
}

// wantClean checks everything that the session said: events, log, error.
func (r *faultRun) wantClean(errs ...error) {
	r.Helper()
	for _, e := range r.events {
		most := 501
		if e.Type == acp.TurnFailed { // the error's, with a message and data of 1,000 runes
			most = 2100
		}
		for _, text := range []string{e.Message, e.ToolName, e.Model} {
			if bad := dirty(text, true, most); bad != "" {
				r.Errorf("%s holds %s: %.200q", e.Type, bad, text)
			}
		}
		if bad := dirty(e.Text, true, 1<<21); bad != "" {
			r.Errorf("the text of a chunk holds %s: %.200q", bad, e.Text)
		}
	}
	for _, err := range errs {
		if err == nil {
			continue
		}
		if bad := dirty(err.Error(), false, 9<<10); bad != "" {
			r.Errorf("an error holds %s: %.300q", bad, err)
		}
	}
	b := r.log.book()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, rec := range b.list {
		for key, v := range rec.attrs {
			if bad := dirty(v, false, 9<<10); bad != "" {
				r.Errorf("log record %q, %s holds %s: %.200q", rec.message, key, bad, v)
			}
		}
	}
}

// TestHostileText: text of the runtime leaves bounded and clean, wherever it
// stood.
func TestHostileText(t *testing.T) {
	text, long := quoteJSON(hostile), quoteJSON(strings.Repeat(hostile, 300))
	megabyte := quoteJSON(strings.Repeat("é", 1<<19))
	update := func(u string) string { return send(update(u)) }
	everything := strings.Join([]string{
		prompted,
		update(`{"sessionUpdate":"agent_message_chunk","messageId":` + text + `,"content":{"type":"text","text":` + text + `}}`),
		update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":` + long + `}}`),
		update(`{"sessionUpdate":"agent_message_chunk","content":{"type":` + text + `,"text":"x"}}`),
		update(`{"sessionUpdate":"tool_call","toolCallId":` + text + `,"title":` + text + `,"kind":` + text + `}`),
		update(`{"sessionUpdate":"tool_call_update","toolCallId":` + text + `,"title":` + text + `,"status":"failed"}`),
		update(`{"sessionUpdate":"tool_call","toolCallId":"m","title":` + megabyte + `,"status":"completed"}`),
		update(`{"sessionUpdate":"tool_call_update","toolCallId":"n","title":` + long + `,"status":"completed"}`),
		update(`{"sessionUpdate":` + text + `}`), update(`{"sessionUpdate":` + long + `}`),
		send(`{"method":` + text + `}`), send(`{"method":` + long + `,"id":` + text + `}`), send(`{"id":` + text + `,"method":` + text + `}`),
		send(hostile), send(`{"id":` + text + `,"result":` + long + `}`),
		`{"stderr":` + quoteJSON(strings.Repeat(hostile, 1000)) + `}`,
	}, ",")
	answered := func(answer string) func() []string {
		return func() []string {
			return []string{everything, send(`{"id":${id:session/prompt},` + answer + `}`), `{"answer_all":true}`}
		}
	}
	rows := []struct {
		name  string
		steps func() []string
		kind  acp.ErrorKind
		text  string
	}{
		{"stop reason", answered(`"result":{"stopReason":` + text + `}`), acp.ErrTurnOutcomeUnknown, "unknown stop reason: red"},
		{"long stop reason", answered(`"result":{"stopReason":` + long + `}`), acp.ErrTurnOutcomeUnknown, "unknown stop reason: red"},
		{"error", answered(`"error":{"code":1,"message":` + text + `,"data":` + text + `}`), acp.ErrResponseError, "session/prompt: error 1: red"},
		{"long error", answered(`"error":{"code":-5,"message":` + long + `,"data":{"a":` + long + `}}`), acp.ErrResponseError, "error -5: red"},
		{"exit", func() []string { return []string{everything, `{"exit":3}`} }, acp.ErrPortExit, "exit status 3"},
		{"completed", answered(`"result":{"stopReason":"end_turn"}`), "", ""},
	}
	var faults []fault
	for _, row := range rows {
		faults = append(faults, fault{name: "turn, " + row.name, turn: want{none: true}, steps: row.steps(), then: func(r *faultRun) {
			_, err := r.turn(0, "hello")
			want{kind: row.kind, text: row.text}.check(r.T, "RunTurn", err, 0)
			r.wantClean(err)
			if r.count(acp.ToolResult, "") != 3 || !strings.HasPrefix(r.said(), "red link") {
				r.Errorf("it said %.100q, and %d tool results", r.said(), r.count(acp.ToolResult, ""))
			}
		}, after: func(r *faultRun) { r.wantClean() }})
	}
	clean := func(r *faultRun) { r.wantClean() }
	faults = append(faults,
		fault{name: "agent", steps: []string{`{"expect":"initialize"}`, send(`{"id":${id:initialize},"result":{"protocolVersion":1,` +
			`"agentInfo":{"name":` + long + `,"version":` + text + `}}}`), created, `{"expect":"session/prompt"}`, ended, `{"answer_all":true}`},
			then: func(r *faultRun) {
				for _, s := range []string{r.s.Info().AgentName, r.s.Info().AgentVersion} {
					if bad := dirty(s, false, 200); bad != "" || !strings.HasPrefix(s, "red link") {
						r.Errorf("%s in %q", bad, s)
					}
				}
			}, after: clean},
	)
	runFaults(t, faults, func(c *acp.Config) { c.StopGrace, c.Record = graceBound, nil })

	t.Run("start", func(t *testing.T) {
		methods := `[` + strings.TrimSuffix(strings.Repeat(`{"id":`+text+`,"name":`+long+`},`, 20), ",") + `]`
		for name, script := range map[string]string{
			"error":          `{"expect":"initialize"},` + send(`{"id":${id:initialize},"error":{"code":7,"message":`+long+`,"data":`+text+`}}`),
			"version":        `{"expect":"initialize"},` + send(`{"id":${id:initialize},"result":{"protocolVersion":`+long+`}}`),
			"authentication": `{"expect":"initialize"},` + send(`{"id":${id:initialize},"result":{"protocolVersion":1,"authMethods":`+methods+`}}`) + `,{"expect":"session/new"},` + send(`{"id":${id:session/new},"error":{"code":-32000,"message":`+long+`}}`),
			"last words":     `{"stderr":` + quoteJSON(strings.Repeat(hostile, 3000)) + `},{"exit":1}`,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := &faultRun{T: t, fake: steps(t, script), log: &records{t: t}}
				r.fake.Record = nil
				_, err := r.fake.start()
				if err == nil {
					t.Fatal("it started")
				}
				r.wantClean(err)
			})
		}
	})
}

// TestOddMessages: what is odd about ids, keys and nesting has its rule.
func TestOddMessages(t *testing.T) {
	ask := func(id string) string { return send(`{"id":` + id + `,"method":"fs/read_text_file","params":{}}`) }
	answered := func(id string) string {
		return `{"expect_reply":` + id + `,"want":{"error.code":-32601}}`
	}
	deep := func(n int) string {
		return send(`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan","entries":` +
			strings.Repeat("[", n) + strings.Repeat("]", n) + `}}}`)
	}
	const unknownMethod, notRPC = "a method this client does not implement", "could not be parsed as JSON-RPC"
	prompt := "${id:session/prompt}"
	longID := func(n int) string { return `"` + strings.Repeat("i", n-2) + `"` }
	tests := []struct {
		name    string
		steps   []string
		typ     acp.EventType
		message string
		count   int
	}{
		{"string", []string{ask(`"a b"`), answered(`"a b"`)}, acp.Malformed, unknownMethod, 1},
		{"fraction", []string{ask(`1.0`), answered(`1.0`)}, acp.Malformed, unknownMethod, 1},
		{"10^400", []string{ask("1" + strings.Repeat("0", 400)), answered("1" + strings.Repeat("0", 400))}, acp.Malformed, unknownMethod, 1},
		{"exponent", []string{ask(`1e400`), answered(`1e400`)}, acp.Malformed, unknownMethod, 1},
		{"negative", []string{ask(`-1`), answered(`-1`)}, acp.Malformed, unknownMethod, 1},
		{"our own", []string{ask(prompt), `{"expect_reply":"` + prompt + `"}`}, acp.Malformed, unknownMethod, 1},
		{"null is a notification", []string{ask(`null`)}, acp.Malformed, "", 0},
		{"an object", []string{ask(`{}`)}, acp.Malformed, notRPC, 1},
		{"true", []string{ask(`true`)}, acp.Malformed, notRPC, 1},
		{"duplicate key, the last counts", []string{send(`{"id":1,"id":"2","method":"x","method":"fs/x"}`), answered(`"2"`)}, acp.Malformed, unknownMethod, 1},
		{"keys in another case", []string{send(`{"ID":7,"Method":"fs/x"}`), send(`{"Id":` + prompt + `,"Result":{"stopReason":"end_turn"}}`)}, acp.Malformed, notRPC, 2},
		{"escaped keys", []string{send(`{"\u0069d":"e","m\u0065thod":"fs/x"}`), answered(`"e"`)}, acp.Malformed, unknownMethod, 1},
		{"as long as may be", []string{ask(longID(1024)), answered(longID(1024))}, acp.Malformed, unknownMethod, 1},
		{"too long", []string{ask(longID(1027))}, acp.Malformed, notRPC, 1},
		{"9 MiB", []string{`{"send_fill":{"prefix":"{\"method\":\"x\",\"id\":\"","byte":"i","count":9437184,"suffix":"\"}"}}`}, acp.Malformed, notRPC, 1},
		{"nested 9,990 deep", []string{deep(9990)}, acp.OtherMessage, "plan update", 1},
		{"nested 10,001 deep", []string{deep(10_001 - 3)}, acp.Malformed, notRPC, 1},
		{"nested 200,000 deep", []string{`{"send_fill":{"prefix":"{\"method\":","byte":"[","count":200000,"suffix":""}}`}, acp.Malformed, notRPC, 1},
		{"objects nested 200,000 deep", []string{`{"send_fill":{"byte":"{\"a\":","count":200000,"suffix":"1"}}`}, acp.Malformed, notRPC, 1},
		{"another answer to the prompt's id as a fraction", []string{send(`{"id":` + prompt + `.0,"result":{"stopReason":"refusal"}}`)}, acp.Malformed, "", 0},
		{"unmatched answers", []string{send(`{"id":null,"result":{}}`), send(`{"id":99,"error":{}}`), send(`{"result":{}}`)}, acp.Malformed, "", 0},
		{"an update with an id is not answered", []string{send(`{"id":5,"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan","entries":[]}}}`),
			`{"expect_none_ms":100}`}, acp.OtherMessage, "plan update", 1},
		{"NUL bytes", []string{send("\x00\x00"), send("{\x00}")}, acp.Malformed, notRPC, 2},
		{"params twice", []string{send(`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan","entries":[]}},"params":{"sessionId":"s"}}`)},
			acp.Malformed, "does not know", 1},
	}
	var rows []fault
	for _, test := range tests {
		rows = append(rows, fault{name: test.name, steps: append(append([]string{prompted}, test.steps...), ended, `{"answer_all":true}`),
			then: func(r *faultRun) {
				if n := r.count(test.typ, test.message); n != test.count {
					r.Errorf("%d events %s %q, want %d: %v", n, test.typ, test.message, test.count, r.events)
				}
			}})
	}
	runFaults(t, rows, func(c *acp.Config) { c.Record = nil })
}

// TestLongIDs: ids of 9 MiB are malformed and not kept.
func TestLongIDs(t *testing.T) {
	census(t)
	n := amount(4, 1024)
	fill := func(front string) string {
		return `{"send_fill":{"prefix":` + quoteJSON(front) + `,"byte":"i","count":9437184,"suffix":"\",\"title\":\"t\"}}}"}}`
	}
	front := `{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"`
	r := &faultRun{T: t, log: &records{t: t}, fake: steps(t, strings.Join(append(append([]string{prompted}, repeated(fill(front), n)...), ended, `{"answer_all":true}`), ","))}
	r.fake.Record, r.fake.Logger = nil, nil
	r.s = r.fake.mustStart()
	if _, err := r.turn(0, "hello"); err != nil {
		t.Error(err)
	}
	if got := r.count(acp.Malformed, "this client does not know"); got != n {
		t.Errorf("%d of %d are malformed", got, n)
	}
	var m runtime.MemStats
	left := await(func() []string {
		runtime.GC()
		runtime.ReadMemStats(&m)
		if m.HeapAlloc > 32<<20 {
			return []string{strconv.Itoa(int(m.HeapAlloc>>20)) + " MiB"}
		}
		return nil
	})
	if len(left) > 0 {
		t.Error(left)
	}
}

func repeated(s string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = s
	}
	return list
}

// TestIdleMemory: what a session keeps does not depend on what it has seen.
func TestIdleMemory(t *testing.T) {
	census(t)
	heap := func() uint64 {
		var m runtime.MemStats
		for range 3 { // the pools let go in two steps
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	big := func(front, back string) string {
		return `{"send_fill":{"prefix":` + quoteJSON(front) + `,"byte":"x","count":4194304,"suffix":` + quoteJSON(back) + `}}`
	}
	cut := func(line string) (front, back string) {
		front, back, _ = strings.Cut(line, "FILL")
		return front, back
	}
	lines := map[string]string{
		"text":    chunk("FILL"),
		"title":   update(`{"sessionUpdate":"tool_call","toolCallId":"c","title":"FILL","status":"completed"}`),
		"kind":    update(`{"sessionUpdate":"FILL"}`),
		"method":  `{"method":"FILL"}`,
		"unknown": update(`{"sessionUpdate":"plan","entries":[],"other":"FILL"}`),
		"error":   `{"id":99,"error":{"message":"FILL"}}`,
	}
	for name, line := range lines {
		t.Run(name, func(t *testing.T) {
			r := &faultRun{T: t, fake: steps(t, strings.Join([]string{prompted, big(cut(line)), ended, `{"answer_all":true}`}, ","))}
			r.fake.Record, r.fake.Logger = nil, nil
			before := heap()
			r.s = r.fake.mustStart()
			_, err := r.s.RunTurn(context.Background(), "hello", nil)
			if err != nil {
				t.Error(err)
			}
			end := time.Now().Add(20 * time.Second)
			for heap() > before+1<<20 && time.Now().Before(end) {
				time.Sleep(10 * time.Millisecond)
			}
			if after := heap(); after > before+1<<20 {
				t.Errorf("%d KiB are kept by an idle session", (after-before)>>10)
			}
		})
	}
}
