package acp

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Bounds of what is read. Past one of the first three a file is given up.
const (
	maxUnread   = 64 << 20 // bytes of the telemetry, or of all journals, that one look reads
	maxValue    = 10 << 20 // bytes of a value or line
	maxMessages = 1 << 15  // messages of a session
	maxHeader   = 4 << 10  // bytes of a journal's first line
	maxEntries  = 1 << 14  // directory entries that one look takes
	maxName     = 256      // bytes of a message's id or of a model's name
)

var (
	errBound    = errors.New("more to read than is allowed")
	errReplaced = errors.New("the file shrank or is another one")
	errNotPlain = errors.New("not of the expected file type")
)

// A stream reads a growing file of JSON objects, each byte once.
type stream struct {
	lines bool // an object ends with its line, else with its closing brace

	seen  fs.FileInfo // the file as last read
	pos   int64       // of the next byte
	start int64       // of the object that pos is in
	depth int         // of braces; 0: in no object
	quote bool        // in a string
	slash bool        // behind a backslash
}

// read passes every object that ended since the last read. One that is half
// written waits for its rest. unread is what may still be read in this look.
func (s *stream) read(root *os.Root, name string, unread *int64, each func(start int64, object []byte) bool) error {
	f, info, err := openPlain(root, name, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if s.seen != nil && !os.SameFile(s.seen, info) || info.Size() < s.pos {
		return errReplaced
	}
	s.seen = info
	if *unread -= info.Size() - s.pos; *unread < 0 {
		return errBound
	}
	return s.scan(f, info.Size(), each)
}

// scan is read on what lies before size. It fails with errBound when each
// returns false.
func (s *stream) scan(r io.ReaderAt, size int64, each func(start int64, object []byte) bool) error {
	buf := make([]byte, min(64<<10, size-s.pos))
	for s.pos < size {
		base := s.pos
		n, err := r.ReadAt(buf[:min(int64(len(buf)), size-base)], base)
		if n == 0 {
			return err
		}
		for s.pos < base+int64(n) {
			rest := buf[s.pos-base : n]
			skip := s.dull(rest)
			s.pos += int64(skip)
			ended := skip < len(rest) && s.step(rest[skip])
			if s.depth > 0 && s.pos-s.start > maxValue {
				return errBound
			}
			if !ended {
				continue
			}
			object := buf[max(0, s.start-base) : s.pos-base]
			if s.start < base { // it began in an earlier piece
				object = make([]byte, s.pos-s.start)
				if _, err := r.ReadAt(object, s.start); err != nil {
					return err
				}
			}
			if !each(s.start, object) {
				return errBound
			}
		}
	}
	return nil
}

// dull counts the bytes ahead that step would only pass over.
func (s *stream) dull(p []byte) int {
	i := 0
	switch {
	case s.depth == 0:
		i = bytes.IndexByte(p, '{')
	case s.lines:
		i = bytes.IndexByte(p, '\n')
	case s.quote && !s.slash:
		i = bytes.IndexAny(p, `"\`)
	}
	if i < 0 {
		return len(p)
	}
	return i
}

// step takes the byte at pos and reports whether an object ends with it. What
// stands between objects is passed over.
func (s *stream) step(c byte) (ended bool) {
	s.pos++
	switch {
	case s.depth == 0:
		if c == '{' {
			s.start, s.depth, s.quote, s.slash = s.pos-1, 1, false, false
		}
	case s.lines:
		if c == '\n' {
			s.depth = 0
			return true
		}
	case s.slash:
		s.slash = false
	case s.quote:
		s.slash = c == '\\'
		s.quote = c != '"'
	case c == '"':
		s.quote = true
	case c == '{':
		s.depth++
	case c == '}':
		s.depth--
		return s.depth == 0
	}
	return false
}

// openPlain opens a file that is of this type itself: a link is not followed,
// nothing that blocks is opened, and nobody swaps it in between.
func openPlain(root *os.Root, name string, typ fs.FileMode) (*os.File, fs.FileInfo, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if before.Mode().Type() != typ {
		return nil, nil, errNotPlain
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	after, err := f.Stat()
	if err == nil && !os.SameFile(before, after) {
		err = errNotPlain
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, after, nil
}

// listDir returns the names of one type in a directory.
func listDir(root *os.Root, dir string, typ fs.FileMode, left *int) (names []string) {
	if *left <= 0 {
		return nil
	}
	f, _, err := openPlain(root, dir, fs.ModeDir)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	entries, _ := f.ReadDir(*left)
	*left -= len(entries)
	for _, e := range entries {
		if e.Type() == typ {
			names = append(names, e.Name())
		}
	}
	return names
}
