package acp_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// The bounds of a session are short here, and each another.
const (
	handshakeBound = 3 * time.Second
	readBound      = 2 * time.Second
	graceBound     = 2400 * time.Millisecond
	turnBound      = time.Second // until a turn is cancelled: what it sends has left by then
)

// Nothing else is short: many processes start at once. short is for a runtime
// that does not end, silent for one that does not answer, noHandshake for one
// that never does.
func short(c *acp.Config)       { c.StopGrace = graceBound }
func silent(c *acp.Config)      { short(c); c.ReadTimeout = readBound }
func noHandshake(c *acp.Config) { silent(c); c.HandshakeTimeout = handshakeBound }

// exactly is a bound that is waited for in full.
func exactly(w want, d time.Duration) want {
	w.from, w.to = d, d
	return w
}

// TestSilence: a runtime that does not answer, or answers nothing but noise.
func TestSilence(t *testing.T) {
	timeout := func(call string) want { return want{kind: acp.ErrResponseTimeout, text: call + ": no answer in time"} }
	cancelled := exactly(want{kind: acp.ErrTurnCancelled, text: context.DeadlineExceeded.Error()}, turnBound+readBound)
	noise := func(line string) string {
		return `{"send_seq":{"n":500,"gap_ms":10,"line":` + quoteJSON(line) + `}}`
	}
	loads := `{"expect":"initialize"},` + send(`{"id":${id:initialize},"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}`)
	resume := func(c *acp.Config) { silent(c); c.Resume = "earlier" }
	refused := `{"expect":"_sortie.dev/probe/unimplemented"},` +
		send(`{"id":${id:_sortie.dev/probe/unimplemented},"error":{"code":-32601,"message":"no"}}`)
	notResumed := func(r *faultRun) {
		if info := r.s.Info(); info.Resumed || info.SessionContinuation || r.s.ID() != "s" {
			r.Errorf("%+v, ID %q", info, r.s.ID())
		}
	}
	runFaults(t, []fault{
		{name: "initialize", config: noHandshake, steps: []string{idle}, start: exactly(timeout("initialize"), handshakeBound)},
		{name: "initialize, noise", config: noHandshake, steps: []string{noise("starting ${i}")}, start: exactly(timeout("initialize"), handshakeBound)},
		{name: "initialize, other answers", config: noHandshake, steps: []string{noise(`{"id":1${i},"result":{}}`)},
			start: exactly(timeout("initialize"), handshakeBound)},
		{name: "session/new", steps: []string{initialized, idle}, start: exactly(timeout("session/new"), readBound)},
		{name: "session/new, noise", steps: []string{initialized, noise(`{"method":"_x/${i}"}`)}, start: exactly(timeout("session/new"), readBound)},
		{name: "control", config: resume, steps: []string{loads, created, `{"expect":"session/prompt"}`, ended, idle},
			start: exactly(want{}, readBound), then: notResumed},
		{name: "session/load", config: resume, steps: []string{loads, refused, created, `{"expect":"session/prompt"}`, ended, idle},
			start: exactly(want{}, readBound), then: notResumed},
		{name: "prompt", steps: []string{prompted, idle}, cancel: turnBound, turn: cancelled},
		{name: "prompt, noise", steps: []string{prompted, noise("working ${i}")}, cancel: turnBound, turn: cancelled},
		{name: "prompt, activity", steps: []string{prompted, noise(chunk("x"))}, cancel: turnBound, turn: cancelled},
		{name: "session/close", steps: []string{prompted, ended, idle}, stop: exactly(want{}, graceBound/2)},
		{name: "anything behind the start", steps: []string{`{"ignore":["SIGTERM"]}`, prompted, idle}, cancel: turnBound,
			turn: cancelled, stop: exactly(want{}, graceBound),
			after: func(r *faultRun) { r.wantForced("grace elapsed") }},
		{name: "anything at all", config: noHandshake, steps: []string{`{"ignore":["SIGTERM"]}`, idle},
			start: exactly(timeout("initialize"), handshakeBound+graceBound), // torn down with the full window
			after: func(r *faultRun) { r.wantForced("grace elapsed") }},
		{name: "a stop in a hurry", steps: []string{`{"ignore":["SIGTERM"]}`, prompted, ended, idle},
			then: func(r *faultRun) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
				defer cancel()
				err := r.s.Stop(ctx)
				exactly(want{}, 400*time.Millisecond).check(r.T, "Stop", err, time.Since(began))
			},
			after: func(r *faultRun) { r.wantForced("caller deadline") }},
	}, silent)
}

// TestClosedStreams: a runtime that closes its standard streams and lives on.
func TestClosedStreams(t *testing.T) {
	const in, out, errs = `{"close_stdin":true}`, `{"close_stdout":true}`, `{"close_stderr":true}`
	lost := want{kind: acp.ErrPortExit, text: "the agent connection was lost"}
	refused := func(w want) func(*faultRun) {
		return func(r *faultRun) { <-r.s.Done(); r.wantRefused(w) }
	}
	unanswered := want{kind: acp.ErrPortExit, text: "agent connection ended before responding"}
	unwritten := want{kind: acp.ErrPortExit, text: "writing to the agent failed"}
	gaveUp := want{kind: acp.ErrPortExit} // by the call or by the failed write: they take as long
	var rows []fault
	for name, closing := range map[string]string{"stdout": out, "stdin and stdout": in + "," + out, "all": in + "," + out + "," + errs} {
		rows = append(rows,
			// The exit is awaited for 5 s during the start, unless the call is over
			// before, and for 1 s behind it.
			fault{name: name + ", initialize", config: noHandshake, steps: []string{`{"expect":"initialize"}`, closing, idle},
				start: exactly(unanswered, handshakeBound)},
			fault{name: name + ", session/new", steps: []string{initialized, `{"expect":"session/new"}`, closing, idle},
				start: exactly(unanswered, readBound)},
			fault{name: name + ", initialize, with time", start: exactly(unanswered, 5*time.Second),
				steps: []string{`{"expect":"initialize"}`, closing, idle}},
			fault{name: name + ", turn", steps: []string{prompted, send(chunk("x")), closing, idle},
				turn: exactly(lost, time.Second), then: refused(lost)},
			fault{name: name + ", between turns", steps: []string{prompted, ended, closing, idle}, then: refused(lost)},
		)
	}
	rows = append(rows,
		fault{name: "stdin, initialize", steps: []string{`{"expect":"initialize"}`, in, initializedAnswer, idle}, start: exactly(gaveUp, readBound)},
		fault{name: "stdin, turn", steps: []string{initialized, `{"expect":"session/new"}`, in, createdAnswer, send(chunk("x")), idle},
			turn: exactly(unwritten, readBound), then: refused(unwritten)},
		// The answer comes although nothing can be written any more.
		fault{name: "stdin, behind the prompt", steps: []string{prompted, in, send(chunk("x")), ended, idle},
			then: func(r *faultRun) {
				took, err := r.turn(0, "again")
				exactly(unwritten, readBound).check(r.T, "the turn behind it", err, took)
				refused(unwritten)(r)
			}},
		fault{name: "stderr", steps: []string{prompted, errs, send(chunk("x")), ended, idle}},
		// It neither reads nor ends by itself.
		fault{name: "stdin, ignoring the signal", steps: []string{`{"ignore":["SIGTERM"]}`, prompted, in, ended, idle},
			stop: want{from: graceBound / 2, to: graceBound}, after: func(r *faultRun) { r.wantForced("grace elapsed") }},
		fault{name: "stdout, ignoring the signal", steps: []string{`{"ignore":["SIGTERM"]}`, prompted, out, idle},
			turn: exactly(lost, time.Second), stop: want{to: graceBound},
			after: func(r *faultRun) { r.wantForced("grace elapsed") }},
	)
	runFaults(t, rows, silent)
}

// TestSecondTurn: a turn ended without its prompt's answer, and the runtime is
// asked for another.
func TestSecondTurn(t *testing.T) {
	cancelled := exactly(want{kind: acp.ErrTurnCancelled}, turnBound+readBound)
	again := func(w want) func(*faultRun) {
		return func(r *faultRun) {
			took, err := r.turn(0, "again")
			w.check(r.T, "the second turn", err, took)
		}
	}
	late := `{"expect":"session/cancel"},{"sleep_ms":3000},` + stopReason("cancelled")
	second := `{"expect":"session/prompt","as":"second"},` + send(`{"id":${id:second},"result":{"stopReason":"end_turn"}}`)
	runFaults(t, []fault{
		{name: "it never answers the first", steps: []string{prompted, idle}, cancel: turnBound, turn: cancelled,
			then: again(exactly(want{kind: acp.ErrResponseTimeout, text: "an earlier prompt is still unanswered"}, readBound))},
		{name: "it answers the first late", steps: []string{prompted, late, second, idle}, cancel: turnBound, turn: cancelled,
			then: again(want{from: 200 * time.Millisecond, to: time.Second})},
		{name: "it answers the first in time", steps: []string{prompted, `{"expect":"session/cancel"}`, stopReason("cancelled"), second, idle},
			cancel: turnBound, turn: want{kind: acp.ErrTurnCancelled, from: turnBound, to: turnBound},
			then: again(want{})},
	}, silent)
}

// TestForcedIsSaid: the level and the attributes of the warning.
func TestForcedIsSaid(t *testing.T) {
	runFaults(t, []fault{{name: "warned", steps: []string{`{"ignore":["SIGTERM"]}`, prompted, ended, idle},
		after: func(r *faultRun) {
			got := r.log.find(msgForced)
			if len(got) != 1 || got[0].level != slog.LevelWarn || got[0].attrs["grace"] != graceBound.String() ||
				got[0].attrs["session_id"] != "s" || got[0].attrs["component"] != "clientprotocol-adapter" || got[0].attrs["pid"] == "" {
				r.Errorf("%+v", got)
			}
		}}}, short)
}
