package acp

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	wasCancelled = `"result":{"outcome":{"outcome":"cancelled"}}}`
	wasRefused   = `"error":{"code":-32601,"message":"method not found"}}`
)

func wasSelected(id string) string {
	return `"result":{"outcome":{"outcome":"selected","optionId":` + id + `}}}`
}

// option makes a permission option; an empty kind leaves it away.
func option(id, kind string) string {
	return `{"optionId":"` + id + `","name":"x","kind":"` + kind + `"}`
}

// TestRequests is the table of SPEC 5.
func TestRequests(t *testing.T) {
	const ask = "session/request_permission"
	options := func(list ...string) string { return `{"sessionId":"s1","options":[` + strings.Join(list, ",") + `]}` }
	refused := []string{"notification " + msgRefused}
	grant := []string{"notification " + msgNeedsGrant}
	tests := []struct {
		name, method, params string
		answer               string
		events               []string
		kind                 ErrorKind
	}{
		{"reject_once", ask, options(option("y", "allow_once"), option("n", "reject_once")), wasSelected(`"n"`), refused, ""},
		{"the first reject_once", ask, options(option("1", "reject_once"), option("2", "reject_once")), wasSelected(`"1"`), refused, ""},
		{"reject_once before reject_always", ask, options(option("1", "reject_always"), option("2", "reject_once")), wasSelected(`"2"`), refused, ""},
		{"else the first reject_always", ask, options(option("y", "allow_always"), option("1", "reject_always"), option("2", "reject_always")), wasSelected(`"1"`), refused, ""},
		{"by kind, never by name or id", ask, options(option("reject_once", "allow_once"), option("allow", "reject_once")), wasSelected(`"allow"`), refused, ""},
		{"the option's id exactly as received", ask, options(`{"optionId":"\u006e<&","kind":"reject_once"}`), wasSelected(`"\u006e<&"`), refused, ""},
		{"an option without an id is none", ask, options(`{"kind":"reject_once"}`, option("n", "reject_always")), wasSelected(`"n"`), refused, ""},
		{"an option that is none", ask, options(`5`, `null`, option("n", "reject_once")), wasSelected(`"n"`), refused, ""},
		{"another session's id changes nothing", ask, `{"sessionId":"zzz","options":[` + option("n", "reject_once") + `]}`, wasSelected(`"n"`), refused, ""},
		{"only options is needed", ask, `{"options":[` + option("n", "reject_once") + `],"toolCall":5}`, wasSelected(`"n"`), refused, ""},
		{"no refusing option", ask, options(option("1", "allow_once"), option("2", "allow_always")), wasCancelled, grant, ErrTurnInputRequired},
		{"an unknown kind", ask, options(option("1", "reject_forever")), wasCancelled, grant, ErrTurnInputRequired},
		{"a kind in another case", ask, options(option("1", "Reject_Once")), wasCancelled, grant, ErrTurnInputRequired},
		{"no option at all", ask, options(), wasCancelled, grant, ErrTurnInputRequired},
		{"options of another type", ask, `{"options":{}}`, wasCancelled, grant, ErrTurnInputRequired},
		{"params that do not decode", ask, `[1]`, wasCancelled, grant, ErrTurnInputRequired},
		{"elicitation/create", "elicitation/create", `{}`, wasRefused, []string{"notification " + msgNeedsAnswer}, ErrTurnInputRequired},
		{"fs", "fs/read_text_file", `{}`, wasRefused, []string{"malformed " + msgNoSuchMethod}, ""},
		{"terminal", "terminal/create", `{}`, wasRefused, []string{"malformed " + msgNoSuchMethod}, ""},
		{"a vendor's", "_vendor/x", `{}`, wasRefused, []string{"malformed " + msgNoSuchMethod}, ""},
		{"one of ours", "session/prompt", `{}`, wasRefused, []string{"malformed " + msgNoSuchMethod}, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				var prompt wire
				r.begun(func(w wire) { prompt = w; r.send(request("77", tc.method, tc.params)) })
				r.handle("", func(wire) {
					if tc.kind == "" {
						r.stop(prompt, "end_turn")
					}
				})
				r.handle("session/cancel", func(wire) { r.stop(prompt, "cancelled") })
				o := r.turn(t.Context())
				wantError(t, o.err, tc.kind)
				wantTook(t, o.took, 0)
				o.wants(t, tc.events...)
				if want := `{"jsonrpc":"2.0","id":77,` + tc.answer; len(r.sent("")) != 1 || r.sent("")[0].raw != want {
					t.Errorf("answers %v, want %s", r.sent(""), want)
				}
				if n := len(r.sent("session/cancel")); (n == 1) != (tc.kind != "") {
					t.Errorf("session/cancel went out %d times", n)
				}
				if want := map[bool]string{true: "end_turn", false: "cancelled"}[tc.kind == ""]; o.res.StopReason != want {
					t.Errorf("stop reason %q, want %q", o.res.StopReason, want)
				}
				if want := strings.Contains(tc.answer, "selected"); (o.res.Refused == 1) != want {
					t.Errorf("refused %d", o.res.Refused)
				}
				// The order on the wire: the answer before session/cancel.
				if tc.kind != "" && r.got[len(r.got)-1].Method != "session/cancel" {
					t.Errorf("last came %v", r.got[len(r.got)-1])
				}
			})
		})
	}
}

// TestRequestIDs: an id goes back exactly as it came.
func TestRequestIDs(t *testing.T) {
	for _, id := range []string{`"a"`, `"\u0061<&>"`, `0`, `-1`, `3`, `1.0`, `1e400`, `123456789012345678901234567890`, `""`} {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(func(w wire) { r.send(request(id, "fs/x", `{}`), answerLine(w, `{"stopReason":"end_turn"}`)) })
			wantError(t, r.turn(t.Context()).err, "")
			synctest.Wait()
			if got := r.sent(""); len(got) != 1 || string(got[0].ID) != id {
				t.Errorf("the answer to %s is %v", id, got)
			}
		})
	}
}

// TestRequestsWhileCancelled: the answer, and nothing else.
func TestRequestsWhileCancelled(t *testing.T) {
	tests := []struct{ name, line, answer string }{
		{"a permission with a refusing option", asksFor("1", ""), wasCancelled},
		{"a permission without one", request("1", "session/request_permission", noGrant), wasCancelled},
		{"a question", request("1", "elicitation/create", `{}`), wasRefused},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				var prompt wire
				r.begun(func(w wire) { prompt = w })
				r.handle("session/cancel", func(wire) { r.send(tc.line); r.stop(prompt, "cancelled") })
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				o := r.turn(ctx)
				wantError(t, o.err, ErrTurnCancelled)
				o.wants(t)
				synctest.Wait()
				if got := r.sent(""); len(got) != 1 || !strings.HasSuffix(got[0].raw, tc.answer) {
					t.Errorf("answers %v", got)
				}
				if len(r.sent("session/cancel")) != 1 || o.res.Refused != 0 {
					t.Errorf("%+v", o.res)
				}
				r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
				wantError(t, r.turn(t.Context()).err, "") // no ending is held
			})
		})
	}
}

// TestRequestsBetweenTurns are answered the same way; an ending they cause is
// held until the next turn.
func TestRequestsBetweenTurns(t *testing.T) {
	tests := []struct {
		name, line, answer, event string
		kind                      ErrorKind
	}{
		{"a permission with a refusing option", asksFor("1", ""), wasSelected(`"n"`), "notification " + msgRefused, ""},
		{"a permission without one", request("1", "session/request_permission", noGrant), wasCancelled, "notification " + msgNeedsGrant, ErrTurnInputRequired},
		{"a question", request("1", "elicitation/create", `{}`), wasRefused, "notification " + msgNeedsAnswer, ErrTurnInputRequired},
		{"anything else", request("1", "fs/x", `{}`), wasRefused, "malformed " + msgNoSuchMethod, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.began(func(w wire) { r.stop(w, "end_turn") })
				r.send(tc.line)
				synctest.Wait()
				if got := r.sent(""); len(got) != 1 || !strings.HasSuffix(got[0].raw, tc.answer) {
					t.Errorf("answers %v", got)
				}
				o := r.turn(t.Context())
				wantError(t, o.err, tc.kind)
				o.wants(t, gapNotice("token counts"), tc.event)
				wantTook(t, o.took, 0)
				if n := len(r.sent("session/prompt")); (n == 0) != (tc.kind != "") || len(r.sent("session/cancel")) > 0 {
					t.Errorf("%d prompts", n)
				}
				o = r.turn(t.Context())
				wantError(t, o.err, "") // once
				o.wants(t)
			})
		})
	}
}

// TestGatedTools: a session with tool servers says once that they cannot be
// called behind a permission.
func TestGatedTools(t *testing.T) {
	grantless := request("2", "session/request_permission", noGrant)
	for _, tc := range []struct {
		name    string
		servers bool
		first   string
		want    []string
	}{
		{"refused", true, asksFor("1", ""), []string{"notification " + msgRefused, "notification " + msgGatedTools}},
		{"cancelled for want of a refusing option", true, grantless, []string{"notification " + msgNeedsGrant, "notification " + msgGatedTools}},
		{"no servers", false, asksFor("1", ""), []string{"notification " + msgRefused}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				if tc.servers {
					r.c.servers = []mcpServer{{name: "a", kind: "stdio", command: "x"}}
				}
				r.begun(func(w wire) { r.send(tc.first); r.stop(w, "end_turn") })
				r.handle("session/cancel", nil)
				r.turn(t.Context()).wants(t, tc.want...)
				r.handle("session/prompt", func(w wire) { r.send(asksFor("1", "")); r.stop(w, "end_turn") })
				r.turn(t.Context()).wants(t, "notification "+msgRefused)
				n := r.log.count("WARN agent gates tools behind permissions")
				if (n == 1) != tc.servers {
					t.Errorf("%d warnings", n)
				}
			})
		})
	}
}

// TestEveryRequestIsAnswered: every one of 10,000 is answered once, duplicates too, in
// order, before the answer to the prompt is waited for.
func TestEveryRequestIsAnswered(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *stage) {
		var ids []string
		r.begun(func(w wire) {
			var lines []string
			for i := range 10_000 {
				id := string(rune('0'+i%10)) + strings.Repeat("7", i%3)
				if id[0] == '0' {
					id = "0"
				}
				ids = append(ids, id)
				lines = append(lines, strings.Replace(asksFor("t", ""), `"id":1`, `"id":`+id, 1))
			}
			r.send(append(lines, answerLine(w, `{"stopReason":"end_turn"}`))...)
		})
		o := r.turn(t.Context())
		wantError(t, o.err, "")
		synctest.Wait()
		var got []string
		for _, w := range r.sent("") {
			got = append(got, string(w.ID))
		}
		if !slices.Equal(got, ids) || o.res.Refused != len(ids) {
			t.Errorf("%d answers to %d requests, %d refused", len(got), len(ids), o.res.Refused)
		}
	})
}
