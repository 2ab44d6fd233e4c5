package acp_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"strings"

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
	for line := range bytes.Lines(p.fake.wire.Bytes()) {
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
