# Runs a command on its own terminal. Usage: terminal.py FOLDER COMMAND…
# Types the content of FOLDER/typed-N when FOLDER/wanted-N appears, for N = 1, 2, … Writes the screen to FOLDER/screen.
# Exits with the command's exit code.
import os, pty, select, signal, sys, termios

folder, command = sys.argv[1], sys.argv[2:]
# Must not outlive a waiting test.
signal.alarm(50)
child, terminal = pty.fork()
if child == 0:
    # Otherwise the kernel flushes pending terminal output at some time after it has sent the signal of a key. Output
    # that the
    # signal's receiver has written by then would be lost too.
    attributes = termios.tcgetattr(0)
    attributes[3] |= termios.NOFLSH
    termios.tcsetattr(0, termios.TCSANOW, attributes)
    os.execvp(command[0], command)
screen, number = open(folder + "/screen", "wb", buffering=0), 1
while True:
    if os.path.exists(f"{folder}/wanted-{number}"):
        os.write(terminal, open(f"{folder}/typed-{number}", "rb").read())
        number += 1
    try:
        if select.select([terminal], [], [], 0.02)[0]:
            screen.write(os.read(terminal, 4096))
    except OSError:
        break
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256)
