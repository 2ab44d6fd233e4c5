// Package model is a pretend language model on the loopback. It speaks the
// wires of Gemini, of OpenAI (chat and responses) and of Anthropic, does what a
// marker in the newest user text says, and keeps every request so that a test
// can see what the model was told.
package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// chunkPause lies between two pieces of an ordinary answer: several chunks, and
// not one write that a runtime could take for one.
const chunkPause = 15 * time.Millisecond

// A Request is what the model received.
type Request struct {
	Path      string
	Model     string
	Prompt    string   // the newest user text that holds a marker
	Tools     []string // the tools on offer
	AfterTool bool     // the newest entry is the outcome of a tool
	Side      bool     // a hidden helper request: it offers no tools or asks for a form
	Body      string
	Gone      bool // the client went away before the answer was complete
}

// Server is a running model. It is closed by Close.
type Server struct {
	URL  string // of the form http://127.0.0.1:PORT
	http *http.Server

	mu       sync.Mutex
	requests []*Request
	changed  chan struct{} // closed and replaced at each change of requests
}

// Start listens on a free loopback port.
func Start() (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + ln.Addr().String(), changed: make(chan struct{})}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.http.Serve(ln) }() // ends by Close
	return s, nil
}

// Close ends the server and cuts the answers in progress.
func (s *Server) Close() error { return s.http.Close() }

// Requests returns what was received so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Request, len(s.requests))
	for i, r := range s.requests {
		all[i] = *r
	}
	return all
}

// Await returns once a request satisfies want, or fails with the context.
func (s *Server) Await(ctx context.Context, want func(Request) bool) (Request, error) {
	for {
		s.mu.Lock()
		changed := s.changed
		for _, r := range s.requests {
			if want(*r) {
				found := *r
				s.mu.Unlock()
				return found, nil
			}
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, context.Cause(ctx)
		}
	}
}

func (s *Server) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// A wire is one way of asking a model.
type wire interface {
	read(path string, body []byte) (ask, error)
	write(out *sender, a ask, r reply)
	failure(status int, text string) any
}

func wireOf(path string) wire {
	switch {
	case strings.Contains(path, "enerateContent"):
		return gemini{}
	case strings.HasSuffix(path, "/chat/completions"):
		return chat{}
	case strings.HasSuffix(path, "/responses"):
		return responses{}
	case strings.HasSuffix(path, "/messages"):
		return anthropic{}
	}
	return nil
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	wi := wireOf(r.URL.Path)
	if r.Method != http.MethodPost || wi == nil {
		plain(w, r)
		return
	}
	a, err := wi.read(r.URL.Path, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	rep := decide(a)
	rec := &Request{Path: r.URL.Path, Model: a.model, Prompt: a.prompt, AfterTool: a.afterTool,
		Side: len(a.tools) == 0 || a.form != nil, Body: string(body)}
	for _, t := range a.tools {
		rec.Tools = append(rec.Tools, t.name)
	}
	s.update(func() { s.requests = append(s.requests, rec) })
	out := &sender{w: w, done: r.Context(), id: len(s.Requests()), pause: chunkPause}
	if rep.pause > 0 {
		out.pause = rep.pause
	}
	if rep.status != 0 {
		out.object(rep.status, wi.failure(rep.status, fmt.Sprintf("pretend error %d", rep.status)))
		return
	}
	wi.write(out, a, rep)
	if out.err != nil || r.Context().Err() != nil {
		s.update(func() { rec.Gone = true })
	}
}

// plain answers what is no request for text: the list of models, token counts.
func plain(w http.ResponseWriter, r *http.Request) {
	out := &sender{w: w, done: r.Context()}
	switch {
	case strings.HasSuffix(r.URL.Path, "/models"):
		out.object(http.StatusOK, obj{"object": "list", "has_more": false, "models": []any{}, "data": []any{
			obj{"id": "fake-model", "object": "model", "type": "model", "display_name": "Pretend", "created": 1, "owned_by": "test"}}})
	case strings.HasSuffix(r.URL.Path, ":countTokens"):
		out.object(http.StatusOK, obj{"totalTokens": InputTokens})
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		out.object(http.StatusOK, obj{"input_tokens": InputTokens})
	default:
		out.object(http.StatusNotFound, obj{"error": obj{"message": "not found", "type": "not_found_error"}})
	}
}

type obj = map[string]any

// sender writes an answer, as one JSON object or as server-sent events.
type sender struct {
	w       http.ResponseWriter
	done    context.Context
	id      int // of this request, for the ids in the answer
	pause   time.Duration
	open    bool
	err     error
	ordinal int // of the event
}

func (o *sender) object(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		o.err = err
		return
	}
	o.w.Header().Set("Content-Type", "application/json")
	o.w.WriteHeader(status)
	_, o.err = o.w.Write(b)
}

// event sends one server-sent event; name may be empty.
func (o *sender) event(name string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		o.err = err
		return
	}
	o.raw(name, string(b))
}

func (o *sender) raw(name, data string) {
	if o.err != nil {
		return
	}
	if !o.open {
		o.open = true
		o.w.Header().Set("Content-Type", "text/event-stream")
		o.w.Header().Set("Cache-Control", "no-cache")
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	if _, o.err = io.WriteString(o.w, name+"data: "+data+"\n\n"); o.err == nil {
		o.err = http.NewResponseController(o.w).Flush()
	}
	o.ordinal++
}

// each calls send for every chunk, with the pause behind it. It stops when the
// client is gone.
func (o *sender) each(chunks []string, send func(string)) {
	for _, c := range chunks {
		if o.err != nil {
			return
		}
		send(c)
		select {
		case <-time.After(o.pause):
		case <-o.done.Done():
			o.err = errors.Join(o.err, o.done.Err())
		}
	}
}

func (o *sender) name(kind string, n int) string { return fmt.Sprintf("%s_%d_%d", kind, o.id, n) }

func join(chunks []string) string { return strings.Join(chunks, "") }

// text flattens the ways in which a message's content is written.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct{ Text string }
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var all []string
	for _, p := range parts {
		all = append(all, p.Text)
	}
	return strings.Join(all, "\n")
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only values of our own
	}
	return string(b)
}
