package acp

import (
	"context"
	"errors"
	"time"
)

const (
	controlMethod = "_sortie.dev/probe/unimplemented" // a name no release can claim
	quietBound    = 250 * time.Millisecond            // SPEC 8: a replay has settled
)

// creation names a session that this process created (SPEC 8, the hold).
type creation struct{ workspace, id string }

type sessionParams struct {
	SessionID string `json:"sessionId,omitempty"`
	CWD       string `json:"cwd"`
	Servers   []any  `json:"mcpServers"`
}

// create creates the session or continues an earlier one (SPEC 2.6 to 2.9). A
// failed one is torn down when it returns.
func (s *Session) create(ctx context.Context) *Error {
	c := s.launch
	servers := []any{}
	if !c.verify { // SPEC 6: a verification session sends none
		var withheld []string
		servers, withheld = renderMCP(c.servers, s.agent.http, s.agent.sse)
		if len(withheld) > 0 {
			s.log.Warn("agent cannot be given some tool servers", "servers", withheld)
			s.do(func(l *loop) { l.lower(&l.info.ToolServers, "tool servers") })
		}
	}
	p := sessionParams{CWD: c.workspace, Servers: servers}
	resumed, why, err := s.resume(ctx, p)
	if err != nil {
		return s.fail(phaseResume, err)
	}
	s.id = c.resume
	if !resumed {
		if err := s.newSession(ctx, p); err != nil {
			return s.fail("session/new", err)
		}
	}
	s.ready(resumed, why, len(servers) > 0)
	return nil
}

func (s *Session) newSession(ctx context.Context, p sessionParams) error {
	raw, err := s.call(ctx, s.launch.readTimeout, "session/new", p, nil)
	if err != nil {
		return err
	}
	id := raw.get("sessionId").str()
	if id == "" {
		return fail(ErrResponseError, "session/new: the answer has no session ID", nil)
	}
	s.adapter.created.Store(creation{p.CWD, id}, time.Now())
	s.id = id
	s.do(func(l *loop) { l.setID(id) })
	return nil
}

// ready ends the start.
func (s *Session) ready(resumed bool, why string, servers bool) {
	closer := ""
	switch {
	case s.launch.verify && s.agent.delete: // SPEC 2.8
		closer = "session/delete"
	case s.agent.close:
		closer = "session/close"
	}
	s.do(func(l *loop) {
		l.closer, l.servers, l.started = closer, servers, true
		l.info.Resumed, l.info.Continuation = resumed, why
		if !resumed && (s.launch.resume != "" || !s.agent.load && !s.agent.resume) {
			l.lower(&l.info.SessionContinuation, "session continuation")
		}
	}) // or it is lost meanwhile; the first turn will say so
	s.log = s.log.With("session_id", cleanLabel(s.id))
	s.meter.open(s.id, s.launch.env)
	s.launch.env = nil
	s.log.Info("agent implementation", "name", s.agent.name, "version", s.agent.version)
}

// setID makes an id our own.
func (l *loop) setID(id string) {
	l.id = id
	l.shape.forget()
	if l.log = l.s.log; id != "" { // SPEC 13: from now on, every record
		l.log = l.log.With("session_id", cleanLabel(id))
	}
	if l.rec != nil {
		l.rec.log.Store(l.log)
	}
}

// resume continues the session that the configuration names, if the runtime
// can. Only a lost connection or the caller's context is an error.
func (s *Session) resume(ctx context.Context, p sessionParams) (ok bool, why string, err error) {
	p.SessionID = s.launch.resume
	method := ""
	switch {
	case s.agent.load:
		method = "session/load"
	case s.agent.resume:
		method = "session/resume"
	}
	switch {
	case p.SessionID == "":
		return false, "no session to continue was named", nil
	case method == "":
		return false, "the agent advertises neither session/load nor session/resume", nil
	}
	_, cerr := s.call(ctx, s.launch.readTimeout, controlMethod, struct{}{}, nil)
	control, _ := errors.AsType[*rpcError](cerr)
	if hard := softError(cerr); hard != nil {
		return false, "", hard
	}
	if errors.Is(cerr, errTimedOut) {
		s.log.Warn("agent did not answer the negative control", "method", method)
		return false, "the negative control was not answered in time", nil
	}
	if method == "session/resume" {
		if _, err = s.call(ctx, s.launch.readTimeout, method, p, nil); err == nil {
			s.do(func(l *loop) { l.setID(p.SessionID) })
			return true, "session/resume succeeded", nil
		}
	} else if err = s.load(ctx, p); err == nil {
		return true, "session/load replayed the session", nil
	}
	if hard := softError(err); hard != nil {
		return false, "", hard
	}
	rpc, refused := errors.AsType[*rpcError](err)
	if refused && control != nil && rpc.code == control.code {
		s.log.Debug("agent does not implement the continuation it advertises", "method", method, "error", err)
		return false, method + " is not implemented", nil
	}
	s.log.Warn("agent did not continue the session", "method", method, "error", err)
	return false, method + ": " + err.Error(), nil
}

// softError returns nil for what only costs the continuation, else err.
func softError(err error) error {
	_, refused := errors.AsType[*rpcError](err)
	own, isOwn := errors.AsType[*Error](err)
	if refused || isOwn && own.Kind == ErrResponseError || errors.Is(err, errTimedOut) || errors.Is(err, errNoReplay) {
		return nil
	}
	return err
}

var errNoReplay = errors.New("nothing was replayed")

// load continues by session/load: confirmed by success and a replayed message,
// then settled.
func (s *Session) load(ctx context.Context, p sessionParams) error {
	if err := s.hold(ctx, p); err != nil {
		return err
	}
	news := make(chan bool, 1)
	_, err := s.call(ctx, s.launch.readTimeout, "session/load", p, func(l *loop) { l.beginReplay(p.SessionID, news) })
	if err == nil {
		err = s.awaitReplay(ctx, news)
	}
	s.do(func(l *loop) { l.endReplay(err == nil) })
	return err
}

// hold keeps a load of a session that this process created back until the wall
// clock has left the UTC minute of the creation.
func (s *Session) hold(ctx context.Context, p sessionParams) error {
	at, ok := s.adapter.created.Load(creation{p.CWD, p.SessionID})
	if !ok {
		return nil
	}
	free := at.(time.Time).Round(0).Truncate(time.Minute).Add(time.Minute)
	wait := min(time.Until(free), time.Minute)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fail(ErrTurnCancelled, msgStartCancelled, context.Cause(ctx))
	case <-s.ending:
		return errLost
	}
}

// awaitReplay waits for a replayed message, and then for a quiet moment.
func (s *Session) awaitReplay(ctx context.Context, news <-chan bool) error {
	end := time.NewTimer(s.launch.readTimeout)
	defer end.Stop()
	var quiet <-chan time.Time
	for {
		select {
		case seen := <-news:
			if !seen {
				continue
			}
			if quiet == nil {
				end.Reset(s.launch.readTimeout)
			}
			quiet = time.After(quietBound)
		case <-quiet:
			return nil
		case <-end.C:
			if quiet == nil {
				return errNoReplay
			}
			return nil
		case <-ctx.Done():
			return fail(ErrTurnCancelled, msgStartCancelled, context.Cause(ctx))
		case <-s.ending:
			return errLost
		}
	}
}

// replay is a load under way.
type replay struct {
	seen  bool       // a message was replayed
	news  chan bool  // to Start: seen, at each update; capacity 1, the newest counts
	queue eventQueue // what was queued before
}

// beginReplay makes the id our own just before the load is sent (SPEC 8).
func (l *loop) beginReplay(id string, news chan bool) {
	l.flushMessage()
	l.setID(id)
	l.replay = &replay{news: news, queue: l.queue}
	l.queue = eventQueue{}
}

// saw notes an update of the replay.
func (r *replay) saw(m *message) {
	if m.kind.is("agent_message_chunk") || m.kind.is("user_message_chunk") {
		r.seen = true
	}
	select {
	case <-r.news:
	default:
	}
	r.news <- r.seen
}

// endReplay keeps the replayed messages of a confirmed load behind what was
// queued before, and drops those of another whole.
func (l *loop) endReplay(confirmed bool) {
	if l.replay == nil {
		return // the load was not sent
	}
	replayed := l.queue
	l.flushMessage()
	if confirmed {
		replayed = l.queue
	} else {
		l.deadID = l.id
		l.setID("")
	}
	l.queue = l.replay.queue
	l.replay = nil
	if events := replayed.take(); confirmed && events != nil {
		l.queue.dropped += replayed.dropped
		for _, ev := range *events {
			l.queue.push(ev, l.cfg.maxLine)
		}
	}
}

// forgetOld drops the creations that no hold can concern any more.
func (a *Adapter) forgetOld() {
	a.created.Range(func(k, at any) bool {
		if time.Since(at.(time.Time)) > time.Minute {
			a.created.Delete(k)
		}
		return true
	})
}

// gaps lists the capabilities that are gaps, in the order of SPEC 7.
func (i *Info) gaps() string {
	gaps := ""
	for _, c := range [...]struct {
		there bool
		label string
	}{
		{i.ToolServers, "tool servers"},
		{i.TokenCounts, "token counts"},
		{i.SessionContinuation, "session continuation"},
		{i.VersionKnown, "agent version"},
	} {
		if c.there {
			continue
		}
		if gaps != "" {
			gaps += ", "
		}
		gaps += c.label
	}
	return gaps
}
