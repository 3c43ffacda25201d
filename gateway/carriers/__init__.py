"""One folder for each carrier or switch. It reads and writes the vendor's messages and checks the vendor's proofs. This
package knows nothing of turns or pacing."""
