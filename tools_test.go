package acp

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func begins(id, more string) string {
	return kind("tool_call", `,"toolCallId":"`+id+`","title":"t"`+more)
}

func updates(id, more string) string {
	return kind("tool_call_update", `,"toolCallId":"`+id+`"`+more)
}

func ends(id string) string { return updates(id, `,"status":"completed"`) }

func asksFor(id, more string) string {
	return request("1", "session/request_permission",
		`{"options":[{"optionId":"n","kind":"reject_once"}],"toolCall":{"toolCallId":"`+id+`"`+more+`}}`)
}

// TestToolKinds is the closed set of SPEC 4.
func TestToolKinds(t *testing.T) {
	for _, k := range []string{"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"} {
		said(t, func(t *testing.T, _ *stage, o outcome) { o.wants(t, "tool_result "+k+" 0s") },
			begins("1", `,"kind":"`+k+`"`), ends("1"))
	}
	for _, k := range []string{`"party"`, `"Read"`, `null`, `5`, `""`} {
		said(t, func(t *testing.T, _ *stage, o outcome) { o.wants(t, "tool_result other 0s") },
			begins("1", `,"kind":`+k), ends("1"))
	}
}

// TestToolCalls sends one line a second and reports what came of each call.
func TestToolCalls(t *testing.T) {
	const exec, read = `,"kind":"execute"`, `,"kind":"read"`
	refusal := "notification " + msgRefused
	tests := []struct {
		name  string
		lines []string
		want  []string
	}{
		{"begun by tool_call", []string{begins("1", exec), ends("1")}, []string{"tool_result execute 1s"}},
		{"begun by an update", []string{updates("1", exec), ends("1")}, []string{"tool_result execute 1s"}},
		{"begun by a permission request", []string{asksFor("1", exec), ends("1")}, []string{refusal, "tool_result execute 1s"}},
		{"the first message that names it counts", []string{asksFor("1", ""), begins("1", exec), updates("1", ""), ends("1")}, []string{refusal, "tool_result execute 3s"}},
		{"a tool_call of an open call begins nothing", []string{updates("1", ""), begins("1", read), ends("1")}, []string{"tool_result read 2s"}},
		{"a later kind replaces an earlier one", []string{begins("1", exec), updates("1", read), ends("1")}, []string{"tool_result read 2s"}},
		{"the end's own kind too", []string{begins("1", exec), updates("1", read+`,"status":"failed"`)}, []string{"tool_result read 1s failed"}},
		{"a missing kind replaces nothing", []string{begins("1", exec), updates("1", ""), ends("1")}, []string{"tool_result execute 2s"}},
		{"a null kind replaces nothing", []string{begins("1", exec), updates("1", `,"kind":null`), ends("1")}, []string{"tool_result execute 2s"}},
		{"ended by tool_call itself", []string{begins("1", exec+`,"status":"completed"`)}, []string{"tool_result execute 0s t"}},
		{"ended and never named", []string{ends("1")}, []string{"tool_result other 0s"}},
		{"reported once", []string{begins("1", exec), ends("1"), ends("1"), updates("1", `,"status":"failed"`)}, []string{"tool_result execute 1s"}},
		{"an update behind the end begins nothing", []string{begins("1", exec), ends("1"), updates("1", ""), ends("1")}, []string{"tool_result execute 1s"}},
		{"a permission behind the end begins nothing", []string{begins("1", exec), ends("1"), asksFor("1", ""), ends("1")}, []string{"tool_result execute 1s", refusal}},
		{"a new tool_call behind the end begins a new call", []string{begins("1", exec), ends("1"), begins("1", ""), updates("1", `,"status":"failed"`)}, []string{"tool_result execute 1s", "tool_result other 1s failed"}},
		{"calls overlap", []string{begins("1", exec), begins("2", read), ends("1"), ends("2")}, []string{"tool_result execute 2s", "tool_result read 2s"}},
		{"an escaped id is what it spells", []string{begins("a", exec), ends(`\u0061`)}, []string{"tool_result execute 1s"}},
		{"a title of its own", []string{begins("1", exec), updates("1", `,"status":"completed","title":"did \u001b[1mit\u0007"`)}, []string{"tool_result execute 1s did it"}},
		{"a title of 501 runes", []string{updates("1", `,"status":"completed","title":"`+strings.Repeat("é", 501)+`"`)}, []string{"tool_result other 0s " + strings.Repeat("é", 500)}},
		{"a title of another type", []string{updates("1", `,"status":"completed","title":5`)}, []string{"tool_result other 0s"}},
		{"a status of another type", []string{begins("1", `,"status":5`), updates("1", `,"status":null`), ends("1")}, []string{"tool_result other 2s"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.begun(func(w wire) {
					for i, line := range append(tc.lines, answerLine(w, `{"stopReason":"end_turn"}`)) {
						r.later(time.Duration(i)*time.Second, func() { r.send(line) })
					}
				})
				r.turn(t.Context()).wants(t, tc.want...)
			})
		})
	}
}

// TestToolsOutliveTurns: the table lives as long as the session.
func TestToolsOutliveTurns(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) { r.send(begins("1", `,"kind":"fetch"`)); r.stop(w, "end_turn") })
		r.turn(t.Context())
		time.Sleep(time.Minute)
		r.handle("session/prompt", func(w wire) { r.send(ends("1")); r.stop(w, "end_turn") })
		r.turn(t.Context()).wants(t, "tool_result fetch 1m0s")
	})
}

// TestToolOverflow: 1,024 ids are remembered; the oldest ended one goes first,
// then the oldest open one.
func TestToolOverflow(t *testing.T) {
	many := func(from, to int, line func(id string) string) (lines []string) {
		for i := from; i < to; i++ {
			lines = append(lines, line(fmt.Sprint(i)))
		}
		return lines
	}
	open := func(id string) string { return begins(id, `,"kind":"read"`) }
	bubble(t, func(t *testing.T, r *stage) {
		play := func(lines ...string) outcome {
			r.handle("session/prompt", func(w wire) { r.send(lines...); r.stop(w, "end_turn") })
			return r.turn(t.Context())
		}
		r.begun(nil)
		// 0 to 1023 are open, then 5 and 3 end.
		play(append(many(0, 1024, open), ends("5"), ends("3"))...)
		if r.log.count("more tool calls") > 0 {
			t.Error("an overflow below the bound")
		}
		// The ended ones are the first to go, the oldest of them first.
		play(open("a"))
		play(ends("5")).wants(t, "tool_result other 0s") // it was forgotten; 3 goes for it
		play(ends("3")).wants(t, "tool_result other 0s") // and now the 5 that ended just now
		play(many(2000, 2001, open)...)                  // now the 3
		play(many(2001, 2003, open)...)                  // now the oldest open ones: 0 and 1
		play(ends("2")).wants(t, "tool_result read 0s")
		play(ends("0")).wants(t, "tool_result other 0s") // forgotten: 2 goes for it
		play(ends("4")).wants(t, "tool_result read 0s")
		play(ends("a")).wants(t, "tool_result read 0s")
		if n := r.log.count("DEBUG agent has more tool calls than are remembered"); n != 7 {
			t.Errorf("%d records of an overflow", n)
		}
	})
}
