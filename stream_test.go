package acp

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// said plays a turn in which the runtime sends these lines and ends.
func said(t *testing.T, f func(t *testing.T, r *stage, o outcome), lines ...string) {
	t.Helper()
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) { r.send(lines...); r.stop(w, "end_turn") })
		o := r.turn(t.Context())
		wantError(t, o.err, "")
		f(t, r, o)
	})
}

const (
	alive     = "notification"
	reasoning = "other_message reasoning block"
	unknown   = "malformed " + msgUnknownUpdate
	noMessage = "malformed " + msgNotRPC
)

func kind(k, more string) string { return update(`{"sessionUpdate":"` + k + `"` + more + `}`) }

// TestStreamTable is the table of SPEC 4, and its last row for each kind.
func TestStreamTable(t *testing.T) {
	tests := []struct {
		name, line string
		want       []string
	}{
		{"message chunk, text", chunk("hi"), []string{alive, "notification hi"}},
		{"message chunk, empty text", chunk(""), []string{alive}},
		{"message chunk, image", kind("agent_message_chunk", `,"content":{"type":"image","data":"x"}`), []string{"malformed " + msgNotText}},
		{"message chunk without a text", kind("agent_message_chunk", `,"content":{"type":"text"}`), []string{unknown}},
		{"message chunk, text of another type", kind("agent_message_chunk", `,"content":{"type":"text","text":5}`), []string{unknown}},
		{"message chunk without a type", kind("agent_message_chunk", `,"content":{"text":"x"}`), []string{unknown}},
		{"message chunk, content of another type", kind("agent_message_chunk", `,"content":"x"`), []string{unknown}},
		{"message chunk, messageId of another type", kind("agent_message_chunk", `,"messageId":5,"content":{"type":"text","text":"hi"}`), []string{alive, "notification hi"}},
		{"thought chunk", kind("agent_thought_chunk", `,"content":{"type":"text","text":"hm"}`), []string{reasoning}},
		{"thought chunk without content", kind("agent_thought_chunk", ``), []string{unknown}},
		{"user chunk", kind("user_message_chunk", `,"content":{"type":"text","text":"hm"}`), nil},
		{"user chunk without content", kind("user_message_chunk", ``), []string{unknown}},
		{"tool_call", kind("tool_call", `,"toolCallId":"1","title":"x"`), nil},
		{"tool_call without an id", kind("tool_call", `,"title":"x"`), []string{unknown}},
		{"tool_call without a title", kind("tool_call", `,"toolCallId":"1"`), []string{unknown}},
		{"tool_call, id a number", kind("tool_call", `,"toolCallId":1,"title":"x"`), []string{unknown}},
		{"tool_call_update, pending", kind("tool_call_update", `,"toolCallId":"1","status":"pending"`), nil},
		{"tool_call_update, no status", kind("tool_call_update", `,"toolCallId":"1"`), nil},
		{"tool_call_update, completed", kind("tool_call_update", `,"toolCallId":"1","status":"completed"`), []string{"tool_result other 0s"}},
		{"tool_call_update, failed", kind("tool_call_update", `,"toolCallId":"1","status":"failed","title":"a\tb"`), []string{"tool_result other 0s failed a\tb"}},
		{"tool_call_update without an id", kind("tool_call_update", `,"status":"failed"`), []string{unknown}},
		{"plan", kind("plan", `,"entries":[]`), []string{"other_message plan update"}},
		{"plan without entries", kind("plan", ``), []string{unknown}},
		{"available_commands_update", kind("available_commands_update", `,"availableCommands":[]`), nil},
		{"available_commands_update without them", kind("available_commands_update", ``), []string{unknown}},
		{"current_mode_update", kind("current_mode_update", `,"currentModeId":"x"`), nil},
		{"current_mode_update without it", kind("current_mode_update", ``), []string{unknown}},
		{"config_option_update", kind("config_option_update", `,"configOptions":[]`), nil},
		{"config_option_update without them", kind("config_option_update", ``), []string{unknown}},
		{"session_info_update", kind("session_info_update", ``), nil},
		{"usage_update", kind("usage_update", `,"used":1,"size":2`), nil},
		{"usage_update without them", kind("usage_update", ``), []string{unknown}},
		{"an unknown kind", kind("party", ``), []string{unknown}},
		{"a kind of another type", update(`{"sessionUpdate":5}`), []string{unknown}},
		{"an update without a kind", update(`{}`), []string{unknown}},
		{"an update of another type", update(`[]`), []string{unknown}},
		{"no update", `{"method":"session/update","params":{"sessionId":"s1"}}`, []string{unknown}},
		{"no session", `{"method":"session/update","params":{"update":{"sessionUpdate":"plan","entries":[]}}}`, []string{unknown}},
		{"another session", updateOf("s2", `{"sessionUpdate":"plan","entries":[]}`), nil},
		{"params of another type", `{"method":"session/update","params":[]}`, []string{noMessage}},
		{"no params", `{"method":"session/update"}`, []string{noMessage}},
		{"an update with an id", `{"id":5,"method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"plan","entries":[]}}}`, []string{"other_message plan update"}},
		{"an escaped kind", update(`{"sessionUpdate":"pl\u0061n","entries":[]}`), []string{"other_message plan update"}},
		{"an escaped key", update(`{"session\u0055pdate":"plan","entries":[]}`), []string{"other_message plan update"}},
		{"a key in another case", update(`{"SessionUpdate":"plan","entries":[]}`), []string{unknown}},
		{"a duplicate key", update(`{"sessionUpdate":"party","sessionUpdate":"plan","entries":5,"entries":[]}`), []string{"other_message plan update"}},
		{"a banner", `Welcome!`, []string{noMessage}},
		{"half a message", `{"method":"session/upd`, []string{noMessage}},
		{"a batch", `[{"method":"x"}]`, []string{noMessage}},
		{"a message of nothing", `{"jsonrpc":"2.0"}`, []string{noMessage}},
		{"a method of another type", `{"method":5}`, []string{noMessage}},
		{"a vendor's notification", `{"method":"_vendor/x","params":{}}`, nil},
		{"a notification with an id of null", `{"id":null,"method":"fs/x","params":{}}`, nil},
		{"a request with an id of another type", `{"id":{},"method":"fs/x"}`, []string{noMessage}},
		{"an unmatched answer", `{"id":999,"result":{}}`, nil},
		{"an answer without an id", `{"result":{}}`, nil},
		{"an answer with an id of null", `{"id":null,"error":{"code":1}}`, nil},
		{"an unmatched answer that is none", `{"id":999}`, []string{noMessage}},
		{"an answer with an id of another type", `{"id":[],"result":{}}`, []string{noMessage}},
		{"blank lines", "\n \t\r\n\r", nil},
		{"nested too deep", `{"method":"x","params":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, []string{noMessage}},
		{"a request id of 1,024 bytes", `{"id":` + strings.Repeat("1", 1024) + `,"method":"fs/x"}`, []string{"malformed " + msgNoSuchMethod}},
		{"one of more", `{"id":` + strings.Repeat("1", 1025) + `,"method":"fs/x"}`, []string{noMessage}},
		{"one of 1,024 bytes, quoted", `{"id":"` + strings.Repeat("x", 1024) + `","method":"fs/x"}`, []string{"malformed " + msgNoSuchMethod}},
		{"one of more, quoted", `{"id":"` + strings.Repeat("x", 1025) + `","method":"fs/x"}`, []string{noMessage}},
		{"a toolCallId of 1,024 bytes", kind("tool_call_update", `,"status":"failed","toolCallId":"`+strings.Repeat("x", 1024)+`"`), []string{"tool_result other 0s failed"}},
		{"one of more", kind("tool_call_update", `,"status":"failed","toolCallId":"`+strings.Repeat("x", 1025)+`"`), []string{unknown}},
		{"a messageId of 1,024 bytes, escaped", update(`{"sessionUpdate":"agent_message_chunk","messageId":"` + strings.Repeat(`\u0041`, 1024) + `","content":{"type":"text","text":"x"}}`), []string{alive, "notification x"}},
		{"a messageId of more", chunkOf(strings.Repeat("x", 1025), "x"), []string{unknown}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			said(t, func(t *testing.T, _ *stage, o outcome) { o.wants(t, tc.want...) }, tc.line)
		})
	}
}

// TestAccumulation: what ends an accumulating message and what does not.
func TestAccumulation(t *testing.T) {
	a, b := chunk("a"), chunk("b")
	x, y := chunkOf("x", "1"), chunkOf("y", "2")
	plan := kind("plan", `,"entries":[]`)
	silent := kind("session_info_update", "")
	user := kind("user_message_chunk", `,"content":{"type":"text","text":"u"}`)
	garbage := "garbage"
	ask := request("1", "session/request_permission", `{"options":[{"optionId":"n","kind":"reject_once"}]}`)
	tests := []struct {
		name  string
		lines []string
		want  []string
	}{
		{"chunks add up", []string{a, b, a}, []string{alive, alive, alive, "notification aba"}},
		{"the same id adds up", []string{x, x}, []string{alive, alive, "notification 11"}},
		{"another id ends it", []string{x, y, x}, []string{alive, "notification 1", alive, "notification 2", alive, "notification 1"}},
		{"none is another than any", []string{a, x, a}, []string{alive, "notification a", alive, "notification 1", alive, "notification a"}},
		{"an empty id is one", []string{a, chunkOf("", "e")}, []string{alive, "notification a", alive, "notification e"}},
		{"an escaped id is what it spells", []string{x, strings.Replace(x, `"x"`, `"\u0078"`, 1)}, []string{alive, alive, "notification 11"}},
		{"a user chunk ends it", []string{a, user, b}, []string{alive, "notification a", alive, "notification b"}},
		{"an update with an event ends it and follows", []string{a, plan, b}, []string{alive, "notification a", "other_message plan update", alive, "notification b"}},
		{"a picture too", []string{a, kind("agent_message_chunk", `,"content":{"type":"image"}`)}, []string{alive, "notification a", "malformed " + msgNotText}},
		{"an unknown one too", []string{a, kind("party", "")}, []string{alive, "notification a", unknown}},
		{"a tool's result too", []string{a, kind("tool_call_update", `,"toolCallId":"1","status":"completed"`)}, []string{alive, "notification a", "tool_result other 0s"}},
		{"an update without an event does not", []string{a, silent, b}, []string{alive, alive, "notification ab"}},
		{"a tool's begin does not", []string{a, kind("tool_call", `,"toolCallId":"1","title":"x"`), b}, []string{alive, alive, "notification ab"}},
		{"another session's update does not", []string{a, updateOf("s2", `{"sessionUpdate":"plan","entries":[]}`), b}, []string{alive, alive, "notification ab"}},
		{"a malformed line does not", []string{a, garbage, b}, []string{alive, noMessage, alive, "notification ab"}},
		{"a refusal's notification does not", []string{a, ask, b}, []string{alive, "notification " + msgRefused, alive, "notification ab"}},
		{"an empty message is not reported", []string{chunk(""), plan, chunk("\x00\x1b[1m")}, []string{alive, "other_message plan update", alive}},
		{"500 runes", []string{chunk(strings.Repeat("é", 400)), chunk(strings.Repeat("é", 100)), chunk("")}, []string{alive, alive, alive, "notification " + strings.Repeat("é", 500)}},
		{"501 runes", []string{chunk(strings.Repeat("é", 400)), chunk(strings.Repeat("é", 101)), chunk("more")}, []string{alive, alive, alive, "notification " + strings.Repeat("é", 500) + "…"}},
		{"500 and one more", []string{chunk(strings.Repeat("é", 500)), chunk("x")}, []string{alive, alive, "notification " + strings.Repeat("é", 500) + "…"}},
		{"500 and what is cleaned away", []string{chunk(strings.Repeat("é", 500)), chunk("\x07")}, []string{alive, alive, "notification " + strings.Repeat("é", 500)}},
		{"the cap is a message's", []string{chunkOf("x", strings.Repeat("é", 600)), y}, []string{alive, "notification " + strings.Repeat("é", 500) + "…", alive, "notification 2"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			said(t, func(t *testing.T, _ *stage, o outcome) { o.wants(t, tc.want...) }, tc.lines...)
		})
	}
}

// TestCleaning: what leaves the package of the runtime's text.
func TestCleaning(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"newline and tab stay", "a\n\tb", "a\n\tb"},
		{"C0 goes", "a\x00\x01\x08\x0b\x0c\r\x0e\x1fb", "ab"},
		{"DEL and C1 go", "a\x7f\u0080\u0085\u009fb", "ab"},
		{"bidirectional controls go", "a\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069b", "ab"},
		{"their neighbours stay", "\u2029\u202f\u2065\u206a\u00a0", "\u2029\u202f\u2065\u206a\u00a0"},
		{"CSI", "a\x1b[1;31mb\x1b[0mc\x1b[?25l", "abc"},
		{"CSI as C1", "a\u009b1;31mb", "ab"},
		{"CSI with intermediates", "a\x1b[1 qb", "ab"},
		{"OSC ended by BEL", "a\x1b]0;title\x07b", "ab"},
		{"OSC ended by ST", "a\x1b]8;;http://x\x1b\\b\x1b]8;;\x1b\\c", "abc"},
		{"OSC as C1", "a\u009d0;t\u009cb", "ab"},
		{"OSC without an end", "a\x1b]0;title", "a]0;title"},
		{"CSI without an end", "a\x1b[12", "a[12"},
		{"a lone ESC", "a\x1b", "a"},
		{"an ESC before something else", "a\x1b(Bc", "a(Bc"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			said(t, func(t *testing.T, _ *stage, o outcome) {
				got := ""
				if s := o.show(); len(s) == 2 {
					got = strings.TrimPrefix(s[1], "notification ")
				}
				if got != tc.want {
					t.Errorf("%q, want %q", got, tc.want)
				}
			}, chunk(tc.text))
		})
	}
	// Cleaned before it is counted and cut.
	said(t, func(t *testing.T, _ *stage, o outcome) {
		o.wants(t, alive, "notification "+strings.Repeat("x", 500))
	}, chunk(strings.Repeat("\x1b[1mx\u202e", 500)))
}

// TestInvalidText: invalid UTF-8 and lone surrogates become U+FFFD.
func TestInvalidText(t *testing.T) {
	raw := func(text string) string {
		return kind("agent_message_chunk", `,"content":{"type":"text","text":"`+text+`"}`)
	}
	said(t, func(t *testing.T, _ *stage, o outcome) {
		o.wants(t, alive, alive, alive, "notification a\uFFFDb\uFFFDcd\U0001F600")
	}, raw("a\xffb"), raw(`\ud800c`), raw(`d\ud83d\ude00`))
}

// TestChunkText: the empty notification carries the chunk's own text.
func TestChunkText(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.c.chunkText = true
		long := strings.Repeat("x", 600)
		r.begun(func(w wire) {
			r.send(chunk("a\x1b[1mb\nc"), chunk(long))
			r.stop(w, "end_turn")
		})
		r.turn(t.Context()).wants(t, "notification «ab\nc»", "notification «"+long+"»",
			"notification ab\nc"+long[:496]+"…")
		r.send(chunk("between"))
		synctest.Wait()
		r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
		r.turn(t.Context()).wants(t, "notification between")
	})
}

// TestTimes: an event's time is its line's, a message's that of its last text
// chunk; what was queued keeps its own.
func TestTimes(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		began := time.Now()
		at := func(n int, lines ...string) { r.later(time.Duration(n)*time.Second, func() { r.send(lines...) }) }
		r.began(func(w wire) {
			at(2, chunk("a"))
			at(3, chunk("b"), "garbage")
			at(4, kind("session_info_update", ""))
			at(5, kind("plan", `,"entries":[]`))
			at(6, chunk("c"))
			r.later(7*time.Second, func() { r.stop(w, "end_turn") })
		})
		r.send(kind("plan", `,"entries":[]`), chunk("early"))
		time.Sleep(time.Second)
		o := r.turn(t.Context())
		o.wants(t, gapNotice("token counts"), "other_message plan update", "notification early",
			alive, alive, noMessage, "notification ab", "other_message plan update", alive, "notification c")
		want := []int{1, 1, 0, 0, 3, 4, 4, 4, 6, 7, 7, 8}
		for i, ev := range o.events {
			if got := ev.Time.Sub(began); got != time.Duration(want[i])*time.Second {
				t.Errorf("%s %q is of %v, want %d s", ev.Type, ev.Message, got, want[i])
			}
		}
	})
}

// TestBetweenTurns: the queue, its bound and its notice.
func TestBetweenTurns(t *testing.T) {
	for _, n := range []int{1023, 1024, 1025, 3000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.began(func(w wire) { r.stop(w, "end_turn") })
				r.turn(t.Context())
				for i := range n {
					r.send(kind("tool_call_update", fmt.Sprintf(`,"status":"completed","toolCallId":"%d","title":"%d"`, i, i)))
				}
				synctest.Wait()
				o := r.turn(t.Context())
				dropped := max(0, n-1024)
				var want []string
				if dropped > 0 {
					want = append(want, fmt.Sprintf("notification %d events were dropped between turns", dropped))
				}
				for i := dropped; i < n; i++ {
					want = append(want, fmt.Sprintf("tool_result other 0s %d", i))
				}
				o.wants(t, want...)
				r.turn(t.Context()).wants(t) // the notice is given once
			})
		})
	}
}

// TestBehindTheAnswer: what comes after the answer belongs between turns.
func TestBehindTheAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) {
			r.send(chunk("in"), answerLine(w, `{"stopReason":"end_turn"}`), chunk("out"), kind("plan", `,"entries":[]`),
				answerLine(w, `{"stopReason":"refusal"}`), chunk("open"))
		})
		r.turn(t.Context()).wants(t, alive, "notification in")
		synctest.Wait() // all of it is read
		r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
		r.turn(t.Context()).wants(t, "notification out", "other_message plan update", "notification open")
	})
}

// TestBeforeTheID: updates may come before the session's id is known.
func TestBeforeTheID(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.handle("session/new", func(w wire) {
			r.send(kind("plan", `,"entries":[]`), updateOf("other", `{"sessionUpdate":"party"}`))
			r.answer(w, `{"sessionId":"s1"}`)
		})
		r.begun(func(w wire) { r.stop(w, "end_turn") })
		o := r.turn(t.Context())
		o.wants(t, "other_message plan update", unknown)
		if slices.ContainsFunc(o.events, func(ev Event) bool { return ev.SessionID != "s1" }) {
			t.Errorf("%+v", o.events)
		}
	})
}

// TestUnknownNamesAreBounded: 64 of them are logged, once each.
func TestUnknownNamesAreBounded(t *testing.T) {
	var lines []string
	for i := range 200 {
		lines = append(lines, kind(fmt.Sprintf("party%d", i), ""), kind("party0", ""))
	}
	said(t, func(t *testing.T, r *stage, _ outcome) {
		if n := r.log.count("DEBUG agent sent an unknown update"); n != 64 {
			t.Errorf("%d records", n)
		}
	}, lines...)
}

// TestShown: what a turn brings that shows the model (SPEC 9).
func TestShown(t *testing.T) {
	for name, tc := range map[string]struct {
		line string
		want bool
	}{
		"a text chunk":            {chunk("x"), true},
		"a chunk that is no text": {kind("agent_message_chunk", `,"content":{"type":"image","data":"x"}`), true},
		"a thought":               {kind("agent_thought_chunk", `,"content":{"type":"text","text":"x"}`), true},
		"a tool call":             {kind("tool_call", `,"toolCallId":"1","title":"x"`), true},
		"a permission's tool call": {request("1", "session/request_permission",
			`{"toolCall":{"toolCallId":"1"},"options":[`+option("n", "reject_once")+`]}`), true},
		"a permission without one": {request("1", "session/request_permission", `{"options":[`+option("n", "reject_once")+`]}`), false},
		"a plan":                   {kind("plan", `,"entries":[]`), false},
		"nothing":                  {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			said(t, func(t *testing.T, _ *stage, o outcome) {
				if o.res.Unaccounted != tc.want {
					t.Errorf("unaccounted %v", o.res.Unaccounted)
				}
			}, tc.line)
		})
	}
}

// TestLongChunkMemory: a long chunk leaves no more than is shown of it, also
// while its message is open.
func TestLongChunkMemory(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.start()
		r.send(chunk(strings.Repeat("x", 900_000)))
		synctest.Wait()
		kept := make(chan int, 1)
		r.s.do(func(l *loop) { kept <- cap(l.msg.text) })
		if n := <-kept; n < maxMessage || n > 8*maxMessage {
			t.Errorf("%d bytes are kept", n)
		}
	})
}

// TestLongSessionID: the events have it exact, the log cut.
func TestLongSessionID(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.id = strings.Repeat("i", 100_000)
		r.begun(func(w wire) { r.send("garbage"); r.stop(w, "end_turn") })
		o := r.turn(t.Context())
		if wantError(t, o.err, ""); o.res.SessionID != r.id {
			t.Errorf("an id of %d bytes", len(o.res.SessionID))
		}
		if r.log.count("agent wrote a line that is no message", r.id[:labelText]) != 1 || r.log.count(r.id[:labelText+1]) != 0 {
			t.Error("the log does not have the id, or more of it than a label")
		}
	})
}
