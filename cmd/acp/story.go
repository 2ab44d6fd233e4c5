package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sortie-ai/acp"
)

// style is how a line is coloured, where there is colour.
type style string

const (
	plainText style = ""
	faint     style = "2"
	good      style = "32"
	warning   style = "33"
	bad       style = "31"
)

// A screen shows text as it streams and whole lines between.
type screen interface {
	text(s string)           // a part of the reply
	endText()                // ends a line of the reply, if one has begun
	line(st style, s string) // a line of its own
	failure(s string)        // a line about what went wrong
	status(phase string, events int)
	close()
}

// story tells a run on a screen.
type story struct {
	screen
	resume bool   // an earlier session was to be continued
	head   string // start of the message that streams, to know it when it is reported whole
	last   string // last line of a kind that tends to repeat
	model  string
	events int
}

// headMax bounds head: a reported message has 500 runes at most.
const headMax = 500 * 4

func (s *story) ready(id string, pid int, info acp.Info) {
	name := strings.TrimSpace(info.AgentName + " " + info.AgentVersion)
	if name == "" {
		name = "unnamed runtime"
	}
	s.line(faint, fmt.Sprintf("session %s, %s, pid %d", oneLine(id), oneLine(name), pid))
	if s.resume {
		s.line(faint, "continuation: "+oneLine(info.Continuation))
	}
}

func (s *story) turnStarts(n, of int, prompt string) {
	if of > 1 {
		first, _, more := strings.Cut(prompt, "\n")
		if more {
			first += " ..."
		}
		s.line(faint, fmt.Sprintf("turn %d of %d: %s", n, of, oneLine(first)))
	}
	s.head, s.last, s.model, s.events = "", "", "", 0
	s.status("", 0) // the time is the turn's
	s.status("waiting", 0)
}

func (s *story) event(e acp.Event) {
	s.events++
	switch e.Type {
	case acp.Notification:
		s.notification(e)
	case acp.ToolResult:
		s.last = ""
		s.line(toolLine(e))
	case acp.OtherMessage:
		s.once(faint, e.Message)
	case acp.Malformed:
		s.once(warning, e.Message)
	case acp.TokenUsage:
		s.model = e.Model
	}
	s.status("running", s.events)
}

func (s *story) notification(e acp.Event) {
	if e.Text != "" {
		if len(s.head) < headMax {
			s.head += e.Text
		}
		s.last = ""
		s.text(e.Text)
	}
	switch {
	case e.Message == "":
	case s.streamed(e.Message):
		s.head = ""
		s.endText()
	default:
		s.line(warning, "note: "+oneLine(e.Message))
	}
}

// streamed reports whether message is the one that was shown piece by piece: a
// message is reported once more, whole but capped, when it ends.
func (s *story) streamed(message string) bool {
	return s.head != "" && strings.HasPrefix(s.head, strings.TrimSuffix(message, "…"))
}

// once leaves out a line that only repeats the one before.
func (s *story) once(st style, message string) {
	if message != s.last {
		s.last = message
		s.line(st, "- "+oneLine(message))
	}
}

func toolLine(e acp.Event) (style, string) {
	took := e.ToolDuration.Round(time.Millisecond)
	what := e.ToolName
	if e.Message != "" {
		what += ": " + oneLine(e.Message)
	}
	if e.ToolError {
		return bad, fmt.Sprintf("* %s (failed, %s)", what, took)
	}
	return good, fmt.Sprintf("* %s (%s)", what, took)
}

func (s *story) turnEnds(n int, r acp.Result, err error, took time.Duration) {
	s.status("", 0)
	facts := fmt.Sprintf("%s, %d events", took.Round(time.Millisecond), s.events)
	if r.Refused > 0 {
		facts += fmt.Sprintf(", %d refused", r.Refused)
	}
	if r.Measured {
		facts += fmt.Sprintf(", tokens so far %d in, %d out", r.Usage.Input, r.Usage.Output)
		if s.model != "" {
			facts += " (" + oneLine(s.model) + ")"
		}
	}
	if err == nil {
		s.line(good, fmt.Sprintf("turn %d completed (%s)", n, facts))
		return
	}
	s.failure(fmt.Sprintf("turn %d: %s (%s)", n, oneLine(err.Error()), facts))
}

func (s *story) stopping() { s.status("stopping", 0) }

func (s *story) over(e end) {
	s.status("", 0)
	if e.untold != nil {
		s.failure(oneLine(e.untold.Error()))
	}
	s.close()
}

// plainScreen is line by line, for whatever is no terminal. What went wrong
// goes to standard error.
type plainScreen struct {
	out     *outlet
	pending []byte // of a text line that has not ended
	begun   bool   // such a line
}

func (p *plainScreen) text(s string) {
	i := strings.LastIndexByte(s, '\n') + 1
	if i > 0 {
		_, _ = p.out.Write(append(p.pending, s[:i]...))
		p.pending = p.pending[:0]
	}
	if p.pending = append(p.pending, s[i:]...); len(p.pending) > 64<<10 { // it may never end
		_, _ = p.out.Write(p.pending)
		p.pending = p.pending[:0]
	}
	p.begun = i < len(s) || p.begun && i == 0
}

func (p *plainScreen) endText() {
	if p.begun {
		p.text("\n")
	}
}

func (p *plainScreen) line(_ style, s string) {
	p.endText()
	p.text(s + "\n")
}

func (p *plainScreen) failure(s string) {
	p.endText()
	if !p.out.dead { // else the closed output is what there is to say
		complain("acp run", errors.New(s))
	}
}

func (p *plainScreen) status(string, int) {}
func (p *plainScreen) close()             { p.endText() }
