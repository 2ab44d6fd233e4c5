package acp

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// TestCapabilityNotice: the first turn names every gap, in this order.
func TestCapabilityNotice(t *testing.T) {
	const name = `"agentInfo":{"name":"peer"},`
	stdio := mcpServer{name: "a", kind: "stdio", command: "x"}
	web := mcpServer{name: "b", kind: "http", url: "http://x"}
	tests := []struct {
		name, answer string
		ssh          bool
		servers      []mcpServer
		want         string
	}{
		{"no gap but the one of every launch without a source", `{` + name + `"protocolVersion":1,"agentCapabilities":` + canLoad + `}`, false, nil, "token counts"},
		{"no version", `{"protocolVersion":1,"agentCapabilities":` + canLoad + `}`, false, nil, "token counts, agent version"},
		{"no continuation", `{` + name + `"protocolVersion":1}`, false, nil, "token counts, session continuation"},
		{"resume is a continuation", `{` + name + `"protocolVersion":1,"agentCapabilities":` + canResume + `}`, false, nil, "token counts"},
		{"remote", `{` + name + `"protocolVersion":1,"agentCapabilities":` + canLoad + `}`, true, nil, "tool servers, token counts"},
		{"a server that needs nothing", `{` + name + `"protocolVersion":1,"agentCapabilities":` + canLoad + `}`, false, []mcpServer{stdio}, "token counts"},
		{"a server withheld", `{` + name + `"protocolVersion":1,"agentCapabilities":` + canLoad + `}`, false, []mcpServer{stdio, web}, "tool servers, token counts"},
		{"a server that is not", `{` + name + `"protocolVersion":1,"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true}}}`, false, []mcpServer{stdio, web}, "token counts"},
		{"all", `{"protocolVersion":1}`, true, nil, "tool servers, token counts, session continuation, agent version"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.caps, r.c.ssh, r.c.servers = tc.answer, tc.ssh, tc.servers
				r.began(func(w wire) { r.stop(w, "end_turn") })
				r.turn(t.Context()).wants(t, gapNotice(tc.want))
				r.turn(t.Context()).wants(t)
				withheld := r.log.count("WARN agent cannot be given some tool servers")
				if (withheld == 1) != (tc.name == "a server withheld") {
					t.Errorf("%d warnings", withheld)
				}
				if n := r.log.count("WARN agent capability lowered"); n != 0 {
					t.Errorf("%d records of a later lowering", n)
				}
			})
		})
	}
	t.Run("none", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(func(w wire) { r.stop(w, "end_turn") })
			r.turn(t.Context()).wants(t)
		})
	})
}

// TestLaterLowering: a Warn record, no second notice, never raised again.
func TestLaterLowering(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) { r.stop(w, "end_turn") })
		r.turn(t.Context()).wants(t)
		for range 2 {
			r.s.dropSource()
		}
		if n := r.log.count("WARN agent capability lowered", "capability=token counts", "session_id=s1"); n != 1 {
			t.Errorf("%d warnings: %v", n, r.log.records)
		}
		r.turn(t.Context()).wants(t)
		if r.s.Info().TokenCounts {
			t.Error("the capability is not lowered")
		}
	})
}

// TestVerification is SPEC 2.8, the rows about who ends a session how.
func TestVerification(t *testing.T) {
	const both, one, other, neither = `{"delete":{},"close":{}}`, `{"delete":{}}`, `{"close":{}}`, `{"delete":null,"close":null}`
	tests := []struct {
		name, caps string
		verify     bool
		want       string
	}{
		{"verification, both", both, true, "session/delete"},
		{"verification, delete", one, true, "session/delete"},
		{"verification, close", other, true, "session/close"},
		{"verification, neither", neither, true, ""},
		{"another, both", both, false, "session/close"},
		{"another, delete", one, false, ""},
		{"another, close", other, false, "session/close"},
		{"another, neither", neither, false, ""},
	}
	for _, tc := range tests {
		for _, refuses := range []bool{false, true} {
			t.Run(tc.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, r *stage) {
					r.c.verify = tc.verify
					r.c.servers = []mcpServer{{name: "a", kind: "stdio", command: "x"}}
					r.caps = `{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":` + tc.caps + `}}`
					for _, m := range []string{"session/close", "session/delete"} {
						r.handle(m, func(w wire) {
							if refuses {
								r.refuse(w, `{"code":1,"message":"no"}`)
							} else {
								r.answer(w, `{}`)
							}
						})
					}
					r.start()
					if err := r.s.Stop(t.Context()); err != nil {
						t.Error(err)
					}
					synctest.Wait()
					want := []string{"session/new"}
					if tc.want != "" {
						want = append(want, tc.want)
					}
					if got := r.methods(); !slices.Equal(got, want) {
						t.Errorf("requests %v, want %v", got, want)
					}
					if empty := strings.Contains(r.sent("session/new")[0].raw, `"mcpServers":[]`); empty != tc.verify {
						t.Errorf("%s", r.sent("session/new")[0].raw)
					}
					failed := func(on bool) int { return map[bool]int{true: 1}[on && refuses] }
					if n := r.log.count("WARN agent session was not deleted"); n != failed(tc.want == "session/delete") {
						t.Errorf("%d warnings", n)
					}
					if n := r.log.count("DEBUG agent session was not closed"); n != failed(tc.want == "session/close") {
						t.Errorf("%d debug records", n)
					}
				})
			})
		}
	}
}
