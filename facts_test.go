package acp_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sortie-ai/acp"
)

// check compares what happened with the scenario's facts, and with what the
// runtime says of its script.
func (p *play) check() {
	p.checkTurns()
	p.checkErrors()
	p.checkReport()
	if p.Facts.Fails != "" {
		p.checkSent()
	}
}

func (p *play) checkTurns() {
	f := p.Facts
	per := func(what string, want []string, right func(got turn, want string) bool) {
		if want != nil && len(want) != len(p.turns) {
			p.Errorf("%d turns, %s names %d", len(p.turns), what, len(want))
			return
		}
		for i, w := range want {
			if got := p.turns[i]; !right(got, w) {
				p.Errorf("turn %d: %s %q: got %v %q, text %.200q", i+1, what, w, got.ExitReason, got.StopReason, got.text)
			}
		}
	}
	per("stop", f.Stop, func(got turn, want string) bool {
		switch want {
		case "end_turn":
			return got.ExitReason == acp.TurnCompleted && got.StopReason == want
		case "input":
			return got.ExitReason == acp.TurnInputRequired
		case "cancelled":
			return got.ExitReason == acp.TurnCancelled
		case "error":
			return got.ExitReason == acp.TurnFailed
		}
		return got.ExitReason == acp.TurnFailed && got.StopReason == want
	})
	per("raw", f.Raw, func(got turn, want string) bool { return got.StopReason == want })
	per("text", f.Text, func(got turn, want string) bool { return got.text == want })
	per("text_suffix", f.TextSuffix, func(got turn, want string) bool { return strings.HasSuffix(got.text, want) })
	last := turn{}
	if len(p.turns) > 0 {
		last = p.turns[len(p.turns)-1]
	}
	if f.LastText != nil && last.text != *f.LastText {
		p.Errorf("the last turn said %q, want %q", last.text, *f.LastText)
	}
	if f.TextSeq > 0 {
		var want strings.Builder
		for i := range f.TextSeq {
			want.WriteString(strconv.Itoa(i) + ";")
		}
		if last.text != want.String() {
			p.Errorf("the last turn said %d bytes, want 0; to %d; in order", len(last.text), f.TextSeq-1)
		}
	}
}

func (p *play) checkErrors() {
	want := alsoTrue[p.ID]
	if len(p.errs) != len(want) {
		p.Errorf("errors %v, want %d", p.errs, len(want))
		return
	}
	for i, w := range want {
		wantKind(p, p.errs[i], w.kind, w.text)
	}
}

// checkReport reads how the runtime fared: no step failed, it was not left
// alone, and it got past everything that it expected of the client.
func (p *play) checkReport() {
	b, err := os.ReadFile(p.fake.report)
	if err != nil {
		p.Errorf("report: %v", err)
		return
	}
	begun, exit, holder := 0, -1, 0
	for line := range strings.Lines(string(b)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		first, _, _ := strings.Cut(rest, " ")
		n, _ := strconv.Atoi(first)
		switch word {
		case "step":
			begun = n
		case "exit":
			exit = n
		case "end":
			begun = len(p.Script) + 1
		case "holder-pid:":
			holder = n
		default: // failed, gone
			p.Errorf("the runtime: %s", line)
		}
	}
	for i, step := range p.Script {
		_, message := step["expect"]
		_, reply := step["expect_reply"]
		if (message || reply) && begun <= i+1 {
			p.Errorf("the runtime was still at step %d and expected more", begun)
			break
		}
	}
	if want := p.Facts.Exit; want != nil && exit != *want {
		p.Errorf("exit status %d, want %d: %s", exit, *want, b)
	}
	living := func() []string {
		if holder == 0 || alive(holder) {
			return []string{"it"}
		}
		return nil
	}
	if p.Facts.HolderDead && len(await(living)) > 0 { // a killed process closes its descriptors before it is dead
		p.Errorf("holder %d is alive", holder)
	}
}

// checkSent checks that the call that fails is the last thing that was sent.
func (p *play) checkSent() {
	want := map[string]string{"initialize": "initialize", "new": "initialize session/new"}[p.Facts.Fails]
	var sent []string
	for line := range bytes.Lines([]byte(p.fake.wire.String())) {
		var entry struct{ Dir, Line string }
		var m struct{ Method string }
		if err := json.Unmarshal(line, &entry); err != nil {
			p.Errorf("transcript: %v", err)
		}
		if entry.Dir == "send" && json.Unmarshal([]byte(entry.Line), &m) == nil {
			sent = append(sent, m.Method)
		}
	}
	if got := strings.Join(sent, " "); got != want { // an unknown name too
		p.Errorf("sent %s, want %s", got, want)
	}
}

// A word that the checker does not know must not pass for a fact that holds.
func TestUnknownWords(t *testing.T) {
	const rest = `"id":"X","script":[{"exit":0}]`
	tests := []struct{ file, text string }{
		{`{` + rest + `,"client":["new"],"facts":{"color":"red"}}`, `unknown field "color"`},
		{`{` + rest + `,"client":["new"],"limits":{"color_ms":1}}`, `unknown field "color_ms"`},
		{`{` + rest + `,"client":[{"prompt":"x","color":1}]}`, `unknown field "color"`},
		{`{` + rest + `,"client":[{"may_fail":true}]}`, `no known word`},
		{`{` + rest + `,"client":["new"],"color":1}`, `unknown field "color"`},
		{`{` + rest + `}`, `lacks`},
	}
	for _, test := range tests {
		name := filepath.Join(t.TempDir(), "scenario.json")
		if err := os.WriteFile(name, []byte(test.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readScenario(name); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, want %s", test.file, err, test.text)
		}
	}
}

// TestCheckerTeeth plays one scenario with facts that do not hold, and with steps
// that the client does not obey.
func TestCheckerTeeth(t *testing.T) {
	together(t)
	update := `{"send":"{\"method\":\"session/update\",\"params\":{\"sessionId\":\"fake-1\",\"update\":` +
		`{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"ok\"}}}}"},`
	end := `{"send":"{\"id\":${id:session/prompt},\"result\":{\"stopReason\":\"end_turn\"}}"},`
	last := `{"answer_all":true}`
	script := `{"answer_all":true,"until":"session/prompt"},{"expect":"session/prompt"},` + update + end + last
	tests := []struct{ script, facts, problem string }{
		{script, `{"stop":["end_turn"],"raw":["end_turn"],"text":["ok"],"text_suffix":["k"],"last_text":"ok"}`, ""},
		{script, `{"stop":["end_turn","end_turn"]}`, "1 turns, stop names 2"},
		{script, `{"stop":["cancelled"]}`, "turn 1: stop"},
		{script, `{"stop":["input"]}`, "turn 1: stop"},
		{script, `{"stop":["error"]}`, "turn 1: stop"},
		{script, `{"stop":["refusal"]}`, "turn 1: stop"},
		{script, `{"raw":["error"]}`, "turn 1: raw"},
		{script, `{"text":["o"]}`, "turn 1: text"},
		{script, `{"text_suffix":["o"]}`, "turn 1: text_suffix"},
		{script, `{"last_text":""}`, "the last turn said"},
		{script, `{"text_seq":2}`, "the last turn said"},
		{script, `{"fails":"new"}`, "the start succeeded"},
		{script, `{"exit":0}`, "exit status -1, want 0"},
		{script, `{"holder_dead":true}`, "holder 0 is alive"},
		{strings.Replace(script, end, end+`{"expect":"session/cancel"},`, 1), `{}`, "expected more"},
		{strings.Replace(script, end, `{"expect_reply":1,"within_ms":1},`+end, 1), `{}`, "failed step 4"},
		{`{"expect":"initialize"},{"exit":3}`, `{"fails":"new"}`, "sent initialize, want initialize session/new"},
		{strings.Replace(script, end, `{"exit":3},`, 1), `{}`, "errors"},
	}
	for _, test := range tests {
		name := filepath.Join(t.TempDir(), "scenario.json")
		client := `"new",{"prompt":"x"}`
		if !strings.Contains(test.script, "session/prompt") {
			client = `"new"`
		}
		file := `{"id":"T","client":[` + client + `],"script":[` + test.script + `],"facts":` + test.facts + `}`
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		sc, err := readScenario(name)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(sc.play(t), "\n")
		if !strings.Contains(got, test.problem) || (got == "") != (test.problem == "") {
			t.Errorf("%s, %s: problems %q, want %q", test.script, test.facts, got, test.problem)
		}
	}
}
