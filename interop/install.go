// Package interop tests package acp from the outside against real
// counterparts: agent runtimes from npm with a pretend model on the loopback,
// the protocol's schema, other implementations of the two protocols.
package interop

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

//go:embed pins.txt
var pinsText string

// A Pin is a line of pins.txt: npm packages that are installed together.
type Pin struct {
	Name     string
	Packages []string // name@version
}

// Version returns the version of the pin's first package.
func (p Pin) Version() string { return version(p.Packages[0]) }

// Pins returns every pin by its name.
func Pins() map[string]Pin {
	all := map[string]Pin{}
	lines := bufio.NewScanner(strings.NewReader(pinsText))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) > 1 && words[0] != "#" {
			all[words[0]] = Pin{words[0], words[1:]}
		}
	}
	return all
}

// version returns what stands behind the last @ of name@version; a scope begins
// with an @ of its own.
func version(pkg string) string { return pkg[strings.LastIndexByte(pkg, '@')+1:] }

// ErrNoNPM says that an install is impossible here, not that it went wrong.
var ErrNoNPM = errors.New("npm is not installed")

// An Installer puts pins into folders of Root, each once.
type Installer struct {
	Root string

	mu sync.Mutex // npm runs one at a time: its cache is shared
}

// Dir installs a pin if that was not done yet and returns its folder. Another
// version goes to another folder.
func (in *Installer) Dir(ctx context.Context, p Pin) (string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	dir := p.Name
	for _, s := range p.Packages {
		dir += "-" + version(s)
	}
	dir = filepath.Join(in.Root, dir)
	done := filepath.Join(dir, ".installed") // written last: an install cut short is begun again
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", ErrNoNPM
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	// #nosec G204 -- npm and the pins
	cmd := exec.CommandContext(ctx, npm, append([]string{"install", "--prefix", dir}, p.Packages...)...)
	cmd.Env = append(os.Environ(), "npm_config_cache="+filepath.Join(in.Root, "npm-cache"),
		"npm_config_fund=false", "npm_config_audit=false", "npm_config_update_notifier=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install %s: %w\n%s", strings.Join(p.Packages, " "), err, lastLines(out, 15))
	}
	return dir, os.WriteFile(done, nil, 0o600)
}

func lastLines(b []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
