package acp_test

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// The floods. Each fills a processor.

// TestLargePrompt: the prompt is larger than the pipe, and the runtime does not
// read it, or hardly, or is itself writing.
func TestLargePrompt(t *testing.T) {
	together(t)
	const whole, part = 8 << 20, 1 << 20 // of the prompt; both are above any pipe
	cancelled := exactly(want{kind: acp.ErrTurnCancelled}, turnBound+readBound)
	// What is half written cannot be taken back: the queue has half of the window,
	// session/close half of the rest.
	stop := exactly(want{}, graceBound*3/4)
	deaf := initialized + `,{"expect":"session/new"},{"stop_reading":true},` + createdAnswer
	flood := amount(20_000, 1_000_000)
	for _, f := range []struct {
		size int
		fault
	}{
		{whole, fault{name: "never read", steps: []string{deaf, idle}, turn: cancelled, stop: stop}},
		{part, fault{name: "a byte a second", steps: []string{initialized, `{"expect":"session/new"},{"read_slow":1000}`, createdAnswer, idle},
			turn: cancelled, stop: stop}},
		{part, fault{name: "never read, flooded", steps: []string{deaf, sendSeq(flood, chunk("x")), idle}, turn: cancelled, stop: stop}},
		{whole, fault{name: "read behind a flood", steps: []string{initialized, created, sendSeq(flood, chunk("x")),
			`{"expect":"session/prompt","require":{"params.prompt.0.text":{"min":` + strconv.Itoa(whole) + `}}}`, ended, `{"answer_all":true}`}}},
		{part, fault{name: "the runtime exits", steps: []string{deaf, `{"sleep_ms":100}`, `{"exit":3}`},
			turn: want{kind: acp.ErrPortExit, text: "the agent connection was lost"}}}, // it may exit ahead of the prompt
	} {
		t.Run(f.name, func(t *testing.T) {
			r := &faultRun{T: t, fake: steps(t, strings.Join(f.steps, ","))}
			silent(&r.fake.Config)
			r.fake.Record, r.fake.Logger = nil, nil
			r.s = r.fake.mustStart()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var began time.Time // behind the prompt's encoding
			_, err := r.s.RunTurn(ctx, strings.Repeat("p", f.size), func(e acp.Event) {
				if e.Type == acp.SessionStarted {
					if began = time.Now(); f.turn.kind == acp.ErrTurnCancelled {
						time.AfterFunc(turnBound, cancel)
					}
				}
			})
			f.turn.check(t, "RunTurn", err, time.Since(began))
			began = time.Now()
			err = r.s.Stop(context.Background())
			f.stop.check(t, "Stop", err, time.Since(began))
			r.wantScript()
		})
	}
}

// TestManyRequests: everything the runtime asks is answered, whatever it asks
// meanwhile.
func TestManyRequests(t *testing.T) {
	ask := func(id string) string {
		return `{"id":` + id + `,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"c${i}"},"options":[` +
			`{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}`
	}
	replies := func(n int, outcome string) string {
		return `{"expect_replies":` + strconv.Itoa(n) + `,"want":{"result.outcome.outcome":"` + outcome + `"}}`
	}
	refused := func(n int) func(*faultRun) {
		return func(r *faultRun) {
			if got := r.count(acp.Notification, "refused a permission request"); got != n || r.res.Refused != n {
				r.Errorf("%d refusals reported, %d counted, want %d", got, r.res.Refused, n)
			}
		}
	}
	const many = 10_000
	runFaults(t, []fault{
		{name: "at once", steps: []string{prompted, sendSeq(many, ask("${i}")), replies(many, "selected"), ended, `{"answer_all":true}`}, then: refused(many)},
		{name: "duplicates", steps: []string{prompted, sendSeq(1000, ask(`"same"`)), replies(1000, "selected"), ended, `{"answer_all":true}`}, then: refused(1000)},
		{name: "the id of our prompt", steps: []string{prompted, sendSeq(10, ask("${id:session/prompt}")), replies(10, "selected"), ended, `{"answer_all":true}`},
			then: refused(10)},
		{name: "behind a cancel", steps: []string{prompted, `{"expect":"session/cancel"}`, sendSeq(1000, ask("${i}")), replies(1000, "cancelled"),
			stopReason("cancelled"), `{"answer_all":true}`}, cancel: 100 * time.Millisecond, turn: want{kind: acp.ErrTurnCancelled}, then: refused(0)},
		{name: "between turns", steps: []string{prompted, ended, sendSeq(1000, ask("${i}")), replies(1000, "selected"), `{"answer_all":true}`},
			then: func(r *faultRun) { r.await("step 9 "); refused(0)(r) }},
		{name: "while it does not read", steps: []string{prompted, `{"stop_reading":true}`, sendSeq(5000, ask(`"`+strings.Repeat("i", 1000)+`"`)), idle},
			turn: want{kind: acp.ErrPortExit, text: "the agent does not read what it is sent"}},
	}, func(c *acp.Config) { c.StopGrace, c.Record, c.Logger = graceBound, nil, nil })
}

// TestBigLines: lines of any length cost a turn at most, and no memory.
func TestBigLines(t *testing.T) {
	n := strconv.Itoa(amount(24<<20, 1<<30))
	endless := `{"send_fill":{"byte":"x","count":` + n + `}}`
	chunkFront := strings.TrimSuffix(chunk(""), `"}}}}`)
	over := want{kind: acp.ErrTurnOutcomeUnknown, text: "the agent sent a line over the bound"}
	second := `{"expect":"session/prompt","as":"second"},` + send(`{"id":${id:second},"result":{"stopReason":"end_turn"}}`) + `,{"answer_all":true}`
	again := func(r *faultRun) {
		if took, err := r.turn(0, "again"); err != nil {
			r.Errorf("the next turn, after %v: %v", took, err)
		}
	}
	cancel := `{"expect":"session/cancel"},` + stopReason("cancelled")
	tests := []fault{
		{name: "in the turn", steps: []string{prompted, endless, cancel, second}, turn: over, then: again},
		{name: "a chunk", steps: []string{prompted, `{"send_fill":{"prefix":` + quoteJSON(chunkFront) + `,"byte":"x","count":` + n + `,"suffix":"\"}}}}"}}`, cancel, second},
			turn: over, then: again},
		{name: "at initialize", steps: []string{`{"expect":"initialize"}`, endless, idle}, start: want{kind: acp.ErrResponseError, text: over.text}},
		{name: "at session/new", steps: []string{initialized, `{"expect":"session/new"}`, endless, idle}, start: want{kind: acp.ErrResponseError, text: over.text}},
		{name: "between turns", steps: []string{prompted, ended, endless, second}, then: func(r *faultRun) {
			r.await("step 8 ")
			again(r)
			if r.count(acp.Malformed, "") != 1 {
				r.Errorf("events %v", r.events)
			}
		}},
		{name: "then the exit", steps: []string{prompted, endless, `{"exit":3}`}, turn: over},
		{name: "that never ends", steps: []string{prompted, `{"send_fill":{"byte":"x","count":` + n + `}}`, idle}, turn: over,
			config: func(c *acp.Config) { c.ReadTimeout = readBound }},
		{name: "of standard error", steps: []string{prompted, `{"stderr_fill":` + n + `,"one_line":true}`, ended, `{"answer_all":true}`}},
		{name: "standard error", steps: []string{prompted, `{"stderr_fill":` + n + `}`, ended, `{"answer_all":true}`}},
		{name: "standard error at the start", steps: []string{`{"stderr_fill":` + n + `}`, prompted, ended, `{"answer_all":true}`}},
	}
	for _, f := range tests {
		t.Run(f.name, func(t *testing.T) {
			census(t)
			f.config = or(f.config, func(*acp.Config) {})
			inner := f.config
			f.config = func(c *acp.Config) { inner(c); c.Record = nil }
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f.run(t)
			runtime.ReadMemStats(&after)
			// The bound of a line is 10 MiB, reached in a few steps.
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 48<<20 {
				t.Errorf("%d MiB were allocated in all", grown>>20)
			}
		})
	}
}

func or[T any](f func(T), def func(T)) func(T) {
	if f == nil {
		return def
	}
	return f
}

// TestManyUpdates: each of a flood of worthless lines has its event and no other
// consequence.
func TestManyUpdates(t *testing.T) {
	n := amount(5000, 1_000_000)
	tests := []struct {
		name, line, message string
		typ                 acp.EventType
		want                int
	}{
		{"unknown updates", update(`{"sessionUpdate":"kind_${i}","x":[1,{"y":null}]}`), "this client does not know", acp.Malformed, n},
		{"garbage", `garbage ${i} {"jsonrpc`, "could not be parsed as JSON-RPC", acp.Malformed, n},
		{"batches", `[{"jsonrpc":"2.0","method":"session/update"}]`, "could not be parsed as JSON-RPC", acp.Malformed, n},
		{"unknown notifications", `{"method":"_vendor/${i}","params":{}}`, "", acp.Malformed, 0},
		{"unmatched answers", `{"id":10${i},"result":{}}`, "", acp.Malformed, 0},
		{"another session", strings.Replace(chunk("x"), `"s"`, `"other"`, 1), "", acp.Malformed, 0},
		{"blank", "  \t\r", "", acp.Malformed, 0},
		{"tool calls that end", update(`{"sessionUpdate":"tool_call","toolCallId":"c${i}","title":"t","status":"completed"}`), "", acp.ToolResult, n},
		{"tool calls that do not", update(`{"sessionUpdate":"tool_call","toolCallId":"c${i}","title":"t"}`), "", acp.ToolResult, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			census(t)
			r := &faultRun{T: t, fake: steps(t, prompted+","+sendSeq(n, test.line)+","+ended+`,{"answer_all":true}`)}
			r.fake.Record, r.fake.Logger = nil, nil
			r.s = r.fake.mustStart()
			if _, err := r.turn(0, "hello"); err != nil {
				t.Error(err)
			}
			if got := r.count(test.typ, test.message); got != test.want {
				t.Errorf("%d events, want %d", got, test.want)
			}
		})
	}
}

// TestFloodBetweenTurns: what comes between turns is kept within its bound, and
// the next turn is told.
func TestFloodBetweenTurns(t *testing.T) {
	const n = 5000
	second := `{"expect":"session/prompt","as":"second"},` + send(`{"id":${id:second},"result":{"stopReason":"end_turn"}}`)
	runFaults(t, []fault{{name: "garbage", steps: []string{prompted, ended, sendSeq(n, "garbage"), second, `{"answer_all":true}`},
		then: func(r *faultRun) {
			for len(r.log.find("agent wrote a line that is no message")) < n {
				time.Sleep(time.Millisecond)
			}
			if _, err := r.turn(0, "again"); err != nil {
				r.Error(err)
			}
			if kept := r.count(acp.Malformed, ""); kept != 1024 || r.count(acp.Notification, strconv.Itoa(n-1024)+" events were dropped between turns") != 1 {
				r.Errorf("%d events kept, of the rest it said %v", kept, r.events[:3])
			}
		}}}, func(c *acp.Config) { c.Record = nil })
}
