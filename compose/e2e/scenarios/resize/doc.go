// Package resize shows what becomes of pods whose resources change while they run.
package resize
